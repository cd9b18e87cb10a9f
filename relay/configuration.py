"""Where settings come from: flags, the environment (`RELAY_…`, `__` nests), relay.toml, defaults.

All that is wrong is told at once: one SettingsError, one sentence per problem, each with the place where the
value was written. Values of secrets are never part of it.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource
from pydantic_settings import SettingsError as UnreadableVariable

from relay.errors import SettingsError
from relay.settings import PREFIX, Settings

# Read by the test suite, not by the relay.
FOREIGN_PREFIX = "RELAY_TEST_"
DEFAULT_FILE = Path("relay.toml")

Values = dict[str, Any]


class Sources(NamedTuple):
    """What each source says, strongest first."""

    flags: Values
    environment: Values
    file: Values
    path: Path

    def merged(self) -> Values:
        return _merge(_merge(self.file, self.environment), self.flags)

    def place(self, names: tuple[str, ...]) -> str:
        """How the user would write this setting where they did."""
        if _has(self.flags, names):
            return "--" + names[-1].replace("_", "-")
        if _has(self.environment, names):
            return PREFIX + "__".join(names).upper()
        section = f"[{'.'.join(names[:-1])}] " if names[1:] else ""
        return f"{section}{names[-1]}" + (f" in {self.path}" if _has(self.file, names) else "")


def load(
    flags: Mapping[str, Any] | None = None, config: str | Path | None = None, *, database: bool = True
) -> Settings:
    """The settings from all sources. Flags that are None were not given.

    database=False: for commands that work without one; `database_url` is then empty unless set.
    """
    path = Path(config) if config is not None else DEFAULT_FILE
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    sources = Sources(given, _environment(), _file(path, required=config is not None), path)
    problems = list(_unknown_variables())
    values = sources.merged()
    if undecodable := [sources.place(names) for names in _undecodable(values)]:
        # By itself: checks of such a value fail for that reason, and say it worse.
        raise SettingsError(
            "\n".join(f"{place} is not UTF-8: write it as UTF-8 text" for place in undecodable)
        )
    if not database:
        values.setdefault("database_url", "")
    try:
        settings = Settings(**values)
    except ValidationError as error:
        problems += [sentence for details in error.errors() for sentence in _sentences(details, sources)]
    if problems:
        raise SettingsError("\n".join(dict.fromkeys(problems)))
    return settings


def _environment() -> Values:
    try:
        return EnvSettingsSource(Settings)()
    except UnreadableVariable as error:
        name = str(error).split('"')[1] if '"' in str(error) else "a variable"
        raise SettingsError(
            f"{PREFIX}{name.upper()} must be JSON, or use {PREFIX}{name.upper()}__…"
        ) from error


def _unknown_variables() -> Iterator[str]:
    known = list(Settings.model_fields)
    for variable in sorted(os.environ):
        upper = variable.upper()
        if upper.startswith(PREFIX) and not upper.startswith(FOREIGN_PREFIX):
            name = upper.removeprefix(PREFIX).lower().split("__")[0]
            if name not in known:
                near = _near(name, known)
                yield f"{variable} is not a setting{near and f': did you mean {PREFIX}{near.upper()}?'}"


def _undecodable(values: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Which settings hold what Python keeps of bytes that are no text: no database and no broker takes it."""
    if isinstance(values, dict):
        for name, inner in values.items():
            yield from _undecodable(inner, (*names, str(name)))
    elif isinstance(values, str) and names != ("health_file",):  # a path may be any bytes
        try:
            values.encode()
        except UnicodeEncodeError:
            yield names


def _file(path: Path, *, required: bool) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise SettingsError(f"the settings file {path} does not exist: check --config") from error
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error


def _sentences(details: ErrorDetails, sources: Sources) -> Iterator[str]:
    names = tuple(str(part) for part in details["loc"])
    # A union's branch is part of pydantic's location, not of the name.
    names = tuple(
        part for part in names if not part.startswith(("function-", "lax-or-strict", "constrained-"))
    )
    match details["type"]:
        case "missing" if names == ("database_url",):
            yield "database_url is missing: set RELAY_DATABASE_URL, or pass --database-url"
        case "extra_forbidden":
            near = _near(names[-1], _names_beside(names))
            yield f"{sources.place(names)} is not a setting" + (f": did you mean {near}?" if near else "")
        case "value_error" if not names:
            yield from details["msg"].removeprefix("Value error, ").splitlines()
        case "value_error":
            yield f"{sources.place(_written(names, sources))}: {details['msg'].removeprefix('Value error, ')}"
        case _:
            named = _written(names, sources)
            shown = "" if _is_secret(named) else f" = {details['input']!r}"
            message = details["msg"][0].lower() + details["msg"][1:]
            yield f"{sources.place(named)}{shown}: {message}"


def _written(names: tuple[str, ...], sources: Sources) -> tuple[str, ...]:
    """The longest part of the location that somebody wrote."""
    values = sources.merged()
    while len(names) > 1 and not _has(values, names):
        names = names[:-1]
    return names


def _is_secret(names: tuple[str, ...]) -> bool:
    if names[0] in ("publisher_options", "database_url") or names[:2] == ("kafka", "config"):
        return True
    model: type[BaseModel] = Settings
    for name in names:
        field = model.model_fields.get(name)
        if field is None:
            return True
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
            continue
        return SecretStr.__name__ in str(annotation)
    return True


def _names_beside(names: tuple[str, ...]) -> list[str]:
    model: Any = Settings
    for name in names[:-1]:
        model = model.model_fields[name].annotation
    return list(model.model_fields)


def _near(name: str, known: list[str]) -> str:
    return next(iter(get_close_matches(name.lower(), known, 1)), "")


def _merge(under: Values, over: Mapping[str, Any]) -> Values:
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _has(values: Any, names: tuple[str, ...]) -> bool:
    for name in names:
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True
