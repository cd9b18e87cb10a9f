"""docs/settings.md: every setting, from the model and the text below each of its fields."""

import ast
import inspect
from datetime import timedelta
from itertools import pairwise
from textwrap import dedent
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ByteSize, SecretStr
from pydantic.fields import FieldInfo

from relay.durations import seconds
from relay.settings import PREFIX, Settings

UNSET = {"publish_seconds": "a third of `lease_seconds`"}


def reference() -> str:
    sections = {name: model for name, field in Settings.model_fields.items() if (model := _section(field))}
    parts = [f"### Of the relay\n\nIn the environment: `{PREFIX}TABLE` is `table`.\n\n{_table(Settings)}"]
    for name, model in sections.items():
        example = next(iter(model.model_fields))
        parts.append(
            f"### `[{name}]`\n\nIn the environment: `{PREFIX}{name.upper()}__{example.upper()}`"
            f" is `[{name}] {example}`.\n\n{_table(model)}"
        )
    return "\n".join(parts)


def _table(model: type[BaseModel]) -> str:
    said = texts(model)
    rows = [
        f"| `{name}` | {_values(field)} | {_default(name, field)} | {said[name]} |"
        for name, field in model.model_fields.items()
        if not _section(field)
    ]
    return "\n".join(["| setting | values | default | |", "|---|---|---|---|", *rows, ""])


def texts(model: type[BaseModel]) -> dict[str, str]:
    """What is written below each field of the class."""
    (body,) = ast.parse(dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: below.value.value
        for field, below in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


def _section(field: FieldInfo) -> type[BaseModel] | None:
    model = field.annotation
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _values(field: FieldInfo) -> str:
    if any(isinstance(each, BeforeValidator) and each.func is seconds for each in field.metadata):
        return "duration"
    return " or ".join(dict.fromkeys(_kind(each) for each in _alternatives(field.annotation)))


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return [each for each in get_args(annotation) if each is not type(None)]
    return [annotation]


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is dict:
        return "table"
    if get_args(annotation):  # Annotated
        return _kind(get_args(annotation)[0])
    names = {SecretStr: "secret", ByteSize: "size", timedelta: "duration, `never`", bool: "`true`, `false`"}
    return names.get(annotation, {int: "number", float: "number", str: "text"}.get(annotation, "path"))


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if name in UNSET:
        return UNSET[name]
    if field.default in (None, {}):
        return "`never`" if timedelta in get_args(field.annotation) else "none"
    return f"`{_written(field.default)}`"


def _written(value: object) -> str:
    match value:
        case timedelta():
            return f"{value.days} days"
        case ByteSize():
            return f"{value / 2**20:g} MiB"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return str(value)
