"""Every setting of the relay, read once, checked once.

Unknown names are errors, and so are settings that contradict each other. Secrets never appear in
`describe`. `Settings(…)` reads nothing from outside: relay/configuration.py knows where values come from.
docs/settings.md is made from the text below each setting.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from relay.destination import shown as shown_destination
from relay.durations import seconds
from relay.errors import SettingsError
from relay.names import TableName

PREFIX = "RELAY_"
HIDDEN = "***"
SHORTEST_TOKEN = 12


def _retention(value: object) -> timedelta | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "never"):
        return None
    return timedelta(seconds=seconds(value))


def _address(value: object) -> str:
    text = str(value).strip()
    host, _, port = text.rpartition(":")
    if text != "off" and not (host and port.isdigit() and int(port) < 65536):
        raise ValueError("write host:port, as in 127.0.0.1:9108, or off")
    return text


def _token(value: SecretStr) -> SecretStr:
    # Whoever reaches the address may guess: short ones are found.
    if len(value.get_secret_value()) < SHORTEST_TOKEN:
        raise ValueError(f"use {SHORTEST_TOKEN} characters or more, for example of 'openssl rand -hex 16'")
    return value


def _template(value: object) -> str:
    text = str(value)
    if left := re.search(r"\{[^{}]*\}?|\}", re.sub(r"\{(event_type|key_type)\}", "", text)):
        # Of a destination that is a URL anything else may be a secret.
        quoted = f"'{left[0]}'" if re.fullmatch(r"\{\w{0,40}\}", left[0]) else "a brace"
        raise ValueError(f"{quoted} is not known here: use {{event_type}} or {{key_type}}")
    return text


Seconds: TypeAlias = Annotated[PositiveFloat, BeforeValidator(seconds)]
Retention: TypeAlias = Annotated[timedelta | None, BeforeValidator(_retention)]
Token: TypeAlias = Annotated[SecretStr, AfterValidator(_token)]
Template: TypeAlias = Annotated[str, BeforeValidator(_template), Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(_Section):
    bootstrap_servers: str | None = None
    """The brokers, as in `kafka-1:9092,kafka-2:9092`; needed by the publisher `kafka`."""
    message_key: Literal["event_id", "partition_key"] = "event_id"
    """What the message key is. The partition follows from the event's key either way."""
    max_unconfirmed_per_key: NonNegativeInt = 0
    """How many events of one key may be on their way at once; 0: no bound."""
    config: Annotated[dict[str, bool | int | float | str], Field(repr=False)] = {}
    """Any property of librdkafka that is not a safety setting; of text, nothing is ever shown."""


class RabbitSettings(_Section):
    url: SecretStr | None = None
    """The node, as in `amqps://user:password@host:5671/vhost`; needed by the publisher `rabbitmq`."""
    routing_key: Template = "{event_type}"
    """The routing key; `{event_type}` and `{key_type}` are filled in."""
    max_unconfirmed_per_key: NonNegativeInt = 1
    """How many events of one key may be on their way at once, 0: no bound; all but 1 can break its order."""
    confirm_seconds: Seconds = 15.0
    """How long a confirm may take before the connection counts as lost."""
    declare: bool = False
    """Declare exchanges that are missing, each with a quorum queue of the same name."""
    management_url: SecretStr | None = None
    """The management API, for `relay doctor`: AMQP does not tell what is bound."""


class WebhookSettings(_Section):
    secret: SecretStr | dict[str, SecretStr] | None = None
    """Signs each request: one secret, or one for each host."""
    timeout_seconds: Seconds = 10.0
    """How long a receiver may take to answer."""
    allow_private: bool = False
    """Send to private and loopback addresses too."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True
    )

    database_url: SecretStr
    """libpq URL of the outbox's database; several hosts with `target_session_attrs` work."""
    table: str = "outbox"
    """The outbox, also with its schema, as in `sales.outbox`."""
    publisher: Annotated[str, Field(min_length=1)] = "kafka"
    """`kafka`, `rabbitmq`, `webhook`, `stdout`, an installed plugin's name, or `module:callable`."""
    destination: Template = "outbox.events"
    """Topic, exchange or URL; `{event_type}` and `{key_type}` are filled in; a row's own one wins."""
    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 4000
    """How many events a claim takes at most."""
    claim_bytes: Annotated[ByteSize, Field(ge=1)] = ByteSize(8 * 1024 * 1024)
    """How many bytes of payload a claim takes at most: what bounds memory."""
    lease_seconds: Seconds = 90.0
    """How long a worker may hold what it has claimed."""
    publish_seconds: Seconds = 0.0
    """The deadline of a batch; what is not confirmed by then is released. A third of the lease if unset."""
    heartbeat_seconds: Seconds = 10.0
    """How often a worker says that it lives."""
    stale_seconds: Seconds = 30.0
    """How long a worker may be silent before the others take over from it."""
    grace_seconds: Seconds = 25.0
    """How long a worker may finish what is in flight when it is told to stop."""
    rate_limits: dict[str, PositiveFloat] = {}
    """Events per second by destination, over all workers together."""
    on_exhausted: Literal["dead_letter", "block"] = "dead_letter"
    """What becomes of an event that cannot be published; `block`: it holds its key until somebody decides."""
    completion: Literal["keep", "delete", "archive"] = "keep"
    """What becomes of a published event's row."""
    retention: Retention = timedelta(days=7)
    """How long published events are kept."""
    dead_letter_retention: Retention = None
    """How long dead letters are kept."""
    inbox_retention: Retention = timedelta(days=7)
    """How long consumers remember what they have applied: longer than any duplicate can be late."""
    wake: Literal["auto", "poll"] = "auto"
    """How an idle relay learns of new events; `poll` where a pooler keeps LISTEN away."""
    format: Literal["plain", "cloudevents"] = "plain"
    """Of messages; `cloudevents`: the CloudEvents 1.0 binary binding of the transport."""
    http: Annotated[str, BeforeValidator(_address)] = "127.0.0.1:9108"
    """Where `/metrics`, `/livez`, `/readyz` and the operator's pages are served, or `off`."""
    health_file: Path | None = None
    """A file that says what `/livez` and `/readyz` would."""
    http_token: Token | None = None
    """Who has it may look at the operator's pages; needed there unless `http` is a loopback address."""
    operator_token: Token | None = None
    """Who has it may look and act: retry, skip, pause, resume."""
    hide_payloads: bool = False
    """Show no payloads on the operator's pages."""
    kafka: KafkaSettings = KafkaSettings()
    rabbitmq: RabbitSettings = RabbitSettings()
    webhook: WebhookSettings = WebhookSettings()
    publisher_options: Annotated[dict[str, Any], Field(repr=False)] = {}
    """The settings of a publisher that is not the relay's own; none of them is ever shown."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    @field_validator("database_url")
    @classmethod
    def _libpq(cls, value: SecretStr) -> SecretStr:
        try:
            conninfo_to_dict(value.get_secret_value())
        except ProgrammingError:
            # Not the error's own text: it may quote the password.
            raise ValueError("write a libpq URL, as in postgresql://user@host:5432/database") from None
        return value

    @field_validator("table")
    @classmethod
    def _table_name(cls, value: str) -> str:
        try:
            TableName.parse(value)
        except SettingsError as error:
            raise ValueError(str(error)) from error
        return value

    @model_validator(mode="before")
    @classmethod
    def _third_of_the_lease(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("publish_seconds") is None:
            try:
                third = seconds(values.get("lease_seconds", 90.0)) / 3
            except ValueError:  # told where lease_seconds is checked
                third = 0.0
            return values | {"publish_seconds": third or 30.0}
        return values

    @model_validator(mode="after")
    def _fit_together(self) -> "Settings":
        problems = [
            f"{short} ({getattr(self, short):g} s) must be shorter than {long} ({getattr(self, long):g} s):"
            f" export {PREFIX}{long.upper()}={3 * getattr(self, short):g}"
            for short, long in (("publish_seconds", "lease_seconds"), ("heartbeat_seconds", "stale_seconds"))
            if getattr(self, short) >= getattr(self, long)
        ]
        waits = {
            "rabbitmq": ("[rabbitmq] confirm_seconds", self.rabbitmq.confirm_seconds),
            "webhook": ("[webhook] timeout_seconds", self.webhook.timeout_seconds),
        }
        if self.publisher in waits:
            name, wait = waits[self.publisher]
            if wait > self.publish_seconds:
                problems.append(
                    f"{name} ({wait:g} s) is longer than publish_seconds ({self.publish_seconds:g} s)"
                )
        if self.http_token is not None and self.http_token == self.operator_token:
            problems.append("http_token and operator_token are the same: who may look could change all")
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def table_name(self) -> TableName:
        return TableName.parse(self.table)

    def publisher_section(self) -> dict[str, Any]:
        """The chosen publisher's own settings, with its secrets in the clear."""
        section = {"kafka": self.kafka, "rabbitmq": self.rabbitmq, "webhook": self.webhook}.get(
            self.publisher
        )
        own = dict(self.publisher_options) if section is None else _reveal(section.model_dump())
        return own | {
            "format": self.format,
            "destination": self.destination,
            "receipts": self.completion != "delete",
        }

    def describe(self) -> dict[str, Any]:
        """All settings as JSON would have them, secrets hidden."""
        shown = self.model_dump(mode="json")  # which hides what is a SecretStr
        for name in ("retention", "dead_letter_retention", "inbox_retention"):
            kept: timedelta | None = getattr(self, name)
            shown[name] = "never" if kept is None else f"{kept.total_seconds():g} s"
        # Of a destination that is a URL only the host: its path may be a secret.
        shown["destination"] = shown_destination(self.destination)
        shown["rate_limits"] = {shown_destination(name): rate for name, rate in self.rate_limits.items()}
        shown["database_url"] = _shown_database(self.database_url.get_secret_value())
        shown["kafka"]["config"] = {name: _shown(name, value) for name, value in self.kafka.config.items()}
        shown["publisher_options"] = dict.fromkeys(self.publisher_options, HIDDEN)
        return shown

    def secrets(self) -> set[str]:
        """Every value that may appear in no text, for who writes texts: `relay.logs.hide`."""
        database = conninfo_to_dict(self.database_url.get_secret_value())
        found = {str(database[name]) for name in _DATABASE_SECRETS & database.keys()}
        # Whoever uses a name that everybody sees as a password has none to hide, and it may be any word.
        found -= {str(database[name]) for name in ("user", "dbname", "host") if name in database}
        for section in (self.model_dump(exclude={"database_url", "kafka", "rabbitmq"}), self.kafka.config):
            found |= set(_texts(section, secret=False))
        for url in (self.rabbitmq.url, self.rabbitmq.management_url):
            found |= set(_passwords(url.get_secret_value())) if url is not None else set()
        return found


# Of the parameters that libpq knows.
_DATABASE_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
_SECRET_NAME = re.compile("password|secret|token")


def _shown_database(url: str) -> str:
    """Rebuilt of what libpq understands: whatever it takes for a password is none of the rest."""
    parameters = {
        name: HIDDEN if name in _DATABASE_SECRETS else str(value)
        for name, value in conninfo_to_dict(url).items()
    }
    return make_conninfo("", **parameters)


def _texts(value: object, *, secret: bool) -> Iterator[str]:
    """The secrets inside: what is a SecretStr, and texts under a name that says so."""
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case str() if secret:
            yield value
        case dict():
            for name, inner in value.items():
                yield from _texts(inner, secret=secret or bool(_SECRET_NAME.search(str(name))))


def _passwords(url: str) -> Iterator[str]:
    """The password of a URL, as it is and as it is written."""
    try:
        parts = urlsplit(url)
    except ValueError:  # told where the URL is used
        return
    if parts.password and parts.password != parts.username:
        yield from (unquote(parts.password), parts.password)


def _reveal(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: _reveal(inner) for name, inner in value.items()}
    return value


def _shown(name: str, value: object) -> object:
    """Any text in [kafka.config] may be a secret: only numbers and switches are shown."""
    plain = isinstance(value, bool | int | float) and not _SECRET_NAME.search(name)
    return value if plain else HIDDEN
