"""Settings: where they come from, what they refuse, and what they never show."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from relay.configuration import load
from relay.durations import seconds
from relay.errors import SettingsError
from relay.settings import Settings

URL = "postgresql://relay:s3cr3t@db.example:5432/shop"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder and an environment without settings."""
    import os

    for name in list(os.environ):
        if name.startswith("RELAY_") and not name.startswith("RELAY_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(**values: Any) -> Settings:
    return load({"database_url": URL} | values)


def problems(**values: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        make(**values)
    return str(caught.value).splitlines()


def test_defaults_are_those_of_the_documentation() -> None:
    settings = make()
    described = settings.describe()
    assert described == {
        "database_url": "user=relay password=*** dbname=shop host=db.example port=5432",
        "table": "outbox",
        "publisher": "kafka",
        "destination": "outbox.events",
        "batch_size": 4000,
        "claim_bytes": 8 * 1024 * 1024,
        "lease_seconds": 90.0,
        "publish_seconds": 30.0,
        "heartbeat_seconds": 10.0,
        "stale_seconds": 30.0,
        "grace_seconds": 25.0,
        "rate_limits": {},
        "on_exhausted": "dead_letter",
        "completion": "keep",
        "retention": "604800 s",
        "dead_letter_retention": "never",
        "inbox_retention": "604800 s",
        "wake": "auto",
        "format": "plain",
        "http": "127.0.0.1:9108",
        "health_file": None,
        "http_token": None,
        "operator_token": None,
        "hide_payloads": False,
        "kafka": {
            "bootstrap_servers": None,
            "message_key": "event_id",
            "max_unconfirmed_per_key": 0,
            "config": {},
        },
        "rabbitmq": {
            "url": None,
            "routing_key": "{event_type}",
            "max_unconfirmed_per_key": 1,
            "confirm_seconds": 15.0,
            "declare": False,
            "management_url": None,
        },
        "webhook": {"secret": None, "timeout_seconds": 10.0, "allow_private": False},
        "publisher_options": {},
    }


def test_flags_win_over_the_environment_over_the_file_over_defaults(
    monkeypatch: pytest.MonkeyPatch, nowhere: Path
) -> None:
    (nowhere / "relay.toml").write_text(
        'destination = "file"\ntable = "file"\npublisher = "file"\n[kafka]\nbootstrap_servers = "file:1"\n'
        'message_key = "partition_key"\n'
    )
    monkeypatch.setenv("RELAY_DESTINATION", "environment")
    monkeypatch.setenv("RELAY_TABLE", "environment")
    monkeypatch.setenv("RELAY_KAFKA__BOOTSTRAP_SERVERS", "environment:1")
    settings = make(destination="flag", publisher=None)
    assert (settings.destination, settings.table, settings.publisher) == ("flag", "environment", "file")
    assert settings.kafka.bootstrap_servers == "environment:1"
    assert settings.kafka.message_key == "partition_key"
    assert settings.completion == "keep"


def test_settings_made_in_code_read_nothing_from_outside(
    monkeypatch: pytest.MonkeyPatch, nowhere: Path
) -> None:
    (nowhere / "relay.toml").write_text('destination = "file"\n')
    monkeypatch.setenv("RELAY_TABLE", "environment")
    settings = Settings(database_url=URL)  # type: ignore[arg-type]
    assert (settings.destination, settings.table) == ("outbox.events", "outbox")


def test_a_named_file_is_read_and_must_exist(nowhere: Path) -> None:
    (nowhere / "other.toml").write_text('table = "sales.outbox"\n')
    assert load({"database_url": URL}, nowhere / "other.toml").table == "sales.outbox"
    with pytest.raises(SettingsError, match=r"missing\.toml does not exist"):
        load({"database_url": URL}, "missing.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        load({"database_url": URL}, nowhere)


def test_a_file_that_is_not_toml_is_one_sentence(nowhere: Path) -> None:
    (nowhere / "relay.toml").write_text("table = outbox\n")
    assert problems()[0].startswith("the settings file relay.toml is not TOML: Invalid value (at line 1")


def test_the_database_url_is_required_unless_the_command_needs_none() -> None:
    with pytest.raises(SettingsError, match="database_url is missing: set RELAY_DATABASE_URL"):
        load()
    assert load(database=False).table == "outbox"


def test_the_database_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_DATABASE_URL", URL)
    assert load().database_url.get_secret_value() == URL


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://a,b,c/shop?target_session_attrs=read-write",
        "host=db user=relay dbname=shop",
        "postgres:///shop?host=/run/postgresql",
    ],
)
def test_every_libpq_form_of_a_database_url_is_accepted(url: str) -> None:
    assert make(database_url=url).database_url.get_secret_value() == url


@pytest.mark.parametrize("url", ["postgresql+psycopg://relay:s3cr3t@db/shop", "mysql://relay:s3cr3t@db/shop"])
def test_a_wrong_database_url_is_refused_without_showing_it(url: str) -> None:
    assert problems(database_url=url) == [
        "--database-url: write a libpq URL, as in postgresql://user@host:5432/database"
    ]


def test_empty_variables_count_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_TABLE", "")
    assert make().table == "outbox"


def test_unknown_variables_are_errors_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_DESTINATON", "x")
    monkeypatch.setenv("RELAY_ZZZ", "x")
    monkeypatch.setenv("RELAY_KAFKA__BOOTSTRAP_SERVER", "x")
    monkeypatch.setenv("RELAY_TEST_ANYTHING", "x")
    assert problems() == [
        "RELAY_DESTINATON is not a setting: did you mean RELAY_DESTINATION?",
        "RELAY_ZZZ is not a setting",
        "RELAY_KAFKA__BOOTSTRAP_SERVER is not a setting: did you mean bootstrap_servers?",
    ]


def test_unknown_names_in_the_file_are_errors_with_a_suggestion(nowhere: Path) -> None:
    (nowhere / "relay.toml").write_text(
        'completions = "keep"\n[rabitmq]\nurl = "x"\n[webhook]\ntimeout = 3\n'
    )
    assert sorted(problems()) == [
        "[webhook] timeout in relay.toml is not a setting: did you mean timeout_seconds?",
        "completions in relay.toml is not a setting: did you mean completion?",
        "rabitmq in relay.toml is not a setting: did you mean rabbitmq?",
    ]


def test_every_problem_is_told_at_once_with_its_place(monkeypatch: pytest.MonkeyPatch, nowhere: Path) -> None:
    (nowhere / "relay.toml").write_text('completion = "kepp"\n[kafka]\nmessage_key = "id"\n')
    monkeypatch.setenv("RELAY_BATCH_SIZE", "0")
    assert sorted(problems(lease_seconds="soon")) == [
        "--lease-seconds: write a duration as seconds or as text such as '90 s', '36h' or '7 days'",
        "RELAY_BATCH_SIZE = '0': input should be greater than or equal to 1",
        "[kafka] message_key in relay.toml = 'id': input should be 'event_id' or 'partition_key'",
        "completion in relay.toml = 'kepp': input should be 'keep', 'delete' or 'archive'",
    ]


@pytest.mark.parametrize(
    "values, sentence",
    [
        (
            {"publish_seconds": 90},
            (
                "publish_seconds (90 s) must be shorter than lease_seconds (90 s):"
                " export RELAY_LEASE_SECONDS=270"
            ),
        ),
        (
            {"heartbeat_seconds": 30},
            (
                "heartbeat_seconds (30 s) must be shorter than stale_seconds (30 s):"
                " export RELAY_STALE_SECONDS=90"
            ),
        ),
        (
            {"publisher": "rabbitmq", "publish_seconds": 10},
            "[rabbitmq] confirm_seconds (15 s) is longer than publish_seconds (10 s)",
        ),
        (
            {"publisher": "webhook", "publish_seconds": 9},
            "[webhook] timeout_seconds (10 s) is longer than publish_seconds (9 s)",
        ),
    ],
)
def test_times_that_do_not_fit_together_are_refused(values: dict[str, Any], sentence: str) -> None:
    assert problems(**values) == [sentence]


def test_times_of_publishers_that_are_not_used_do_not_matter() -> None:
    assert make(publisher="kafka", publish_seconds=5).publish_seconds == 5


def test_the_publish_deadline_is_a_third_of_the_lease_unless_set() -> None:
    assert make(lease_seconds=30).publish_seconds == 10
    assert make(lease_seconds="2 minutes").publish_seconds == 40
    assert make(lease_seconds=30, publish_seconds=20).publish_seconds == 20


@pytest.mark.parametrize("name", ["lease_seconds", "publish_seconds", "heartbeat_seconds", "grace_seconds"])
@pytest.mark.parametrize("value", [0, -1, "nan", "inf", True])
def test_times_are_positive_and_finite(name: str, value: object) -> None:
    assert len(problems(**{name: value})) == 1


@pytest.mark.parametrize(
    "text, expected",
    [
        (5, 5.0),
        (0.5, 0.5),
        ("90", 90.0),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("90 s", 90.0),
        ("2 seconds", 2.0),
        ("1 sec", 1.0),
        ("5 min", 300.0),
        ("5 mins", 300.0),
        ("1 minute", 60.0),
        ("36h", 129600.0),
        ("1h 30m", 5400.0),
        ("1h30m", 5400.0),
        ("7 days", 604800.0),
        ("7d", 604800.0),
        ("2 Weeks", 1209600.0),
        (timedelta(minutes=1), 60.0),
    ],
)
def test_durations_are_numbers_of_seconds_or_text(text: object, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "h", "5h x", "-5s", "1e999", None, True])
def test_other_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence depends on what is wrong
        seconds(text)


@pytest.mark.parametrize(
    "text",
    [
        "1000000000 days",
        "9999999 days",
        "36526 days",
        pytest.param(10**400, id="huge"),
        1e300,
        timedelta(days=36_526),
    ],
)
def test_a_duration_that_a_clock_could_not_take_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="100 years"):
        seconds(text)
    for name in ("retention", "dead_letter_retention", "inbox_retention", "lease_seconds"):
        assert problems(**{name: text}) == [
            f"--{name.replace('_', '-')}: a duration is 100 years (36525 days) at most"
        ]


def test_100_years_are_a_duration() -> None:
    assert make(retention="36525 days").retention == timedelta(days=36_525)


def test_a_variable_that_is_not_utf8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_TABLE", "sales\udcff")
    monkeypatch.setenv("RELAY_KAFKA__BOOTSTRAP_SERVERS", "\udcff:9092")
    monkeypatch.setenv("RELAY_HEALTH_FILE", "/run/\udcff")  # a path may be any bytes
    assert sorted(problems()) == [
        "RELAY_KAFKA__BOOTSTRAP_SERVERS is not UTF-8: write it as UTF-8 text",
        "RELAY_TABLE is not UTF-8: write it as UTF-8 text",
    ]


def test_retention_may_be_never() -> None:
    settings = make(retention="never", dead_letter_retention="30 days", inbox_retention=3600)
    assert settings.retention is None
    assert settings.dead_letter_retention == timedelta(days=30)
    assert settings.inbox_retention == timedelta(hours=1)


@pytest.mark.parametrize("text", ["outbox", "sales.outbox", '"My schema"."Out.Box"'])
def test_table_names_may_carry_a_schema(text: str) -> None:
    assert make(table=text).table == text


@pytest.mark.parametrize("text", ["", "a.b.c", '"open', "x" * 41])
def test_what_is_not_a_table_name_is_refused(text: str) -> None:
    assert len(problems(table=text)) == 1


@pytest.mark.parametrize("text", ["events", "{key_type}.{event_type}", "https://x.example/{event_type}"])
def test_destinations_may_use_the_fields_of_an_event(text: str) -> None:
    assert make(destination=text).destination == text


@pytest.mark.parametrize("text", ["", "{key}", "{event_type", "a}", "{event_type!r}", "{}"])
def test_destinations_with_other_fields_are_refused(text: str) -> None:
    assert len(problems(destination=text)) == 1


@pytest.mark.parametrize("text", ["9108", "localhost", "localhost:x", "localhost:70000", ":1"])
def test_an_address_that_is_not_one_is_refused(text: str) -> None:
    assert problems(http=text) == ["--http: write host:port, as in 127.0.0.1:9108, or off"]


def test_sizes_may_be_written_with_their_unit() -> None:
    assert make(claim_bytes="2 MiB").claim_bytes == 2 * 1024 * 1024


SECRET = "hunter2hunter2"


def full_of_secrets(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("RELAY_RABBITMQ__URL", f"amqp://relay:{SECRET}@mq/")
    monkeypatch.setenv("RELAY_HTTP_TOKEN", SECRET)
    monkeypatch.setenv("RELAY_OPERATOR_TOKEN", f"{SECRET}-2")
    monkeypatch.setenv("RELAY_WEBHOOK__SECRET", json.dumps({"a.example": SECRET}))
    config = {
        "sasl.password": SECRET,
        "ssl.key.password": 1234,
        "linger.ms": 7,
        "socket.keepalive.enable": True,
    }
    monkeypatch.setenv("RELAY_KAFKA__CONFIG", json.dumps(config))
    monkeypatch.setenv("RELAY_PUBLISHER_OPTIONS", json.dumps({"password": SECRET}))
    return make(database_url=f"postgresql://relay:{SECRET}@db/shop?sslpassword={SECRET}")


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = full_of_secrets(monkeypatch)
    assert settings.kafka.config["sasl.password"] == SECRET
    described = settings.describe()
    assert described["kafka"]["config"] == {
        "sasl.password": "***",
        "ssl.key.password": "***",
        "linger.ms": 7,
        "socket.keepalive.enable": True,
    }
    assert SECRET not in json.dumps(described)
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://relay:p'w9secret@db/app", "user=relay password=*** dbname=app host=db"),
        ("host=db password=abc,def;ghi", "host=db password=***"),
        ("postgresql://db/app?user=relay&password=abc,def", "user=relay password=*** dbname=app host=db"),
        ("password=pa\\ ss host=db", "password=*** host=db"),
        ("postgresql://db/app?passw%6Frd=hidden1", "password=*** dbname=app host=db"),
        ("host=db sslpassword='a b\\'c'", "host=db sslpassword=***"),
        ("postgresql://a:1,b:2/app?target_session_attrs=read-write", None),
        ("", ""),
    ],
)
def test_of_a_database_url_only_what_is_no_password_is_shown(url: str, shown: str | None) -> None:
    described = make(database_url=url).describe()["database_url"]
    if shown is None:
        assert conninfo_to_dict(described) == conninfo_to_dict(url)
    else:
        assert conninfo_to_dict(described) == conninfo_to_dict(shown)


def test_the_secrets_of_settings_are_known_by_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = full_of_secrets(monkeypatch)
    assert settings.secrets() == {SECRET, f"{SECRET}-2"}
    odd = make(database_url="password=pa\\ ss host=db", rabbitmq={"url": "amqp://u:p%40ss@mq/"})
    assert {"pa ss", "p@ss", "p%40ss"} <= odd.secrets()


def test_a_password_that_is_the_name_of_the_user_hides_no_words() -> None:
    same = make(database_url="postgresql://app:app@db/shop", rabbitmq={"url": "amqp://guest:guest@mq/"})
    assert same.secrets() == set()


def test_problems_never_quote_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_WEBHOOK__SECRET", json.dumps({"a.example": [SECRET]}))
    monkeypatch.setenv("RELAY_KAFKA__CONFIG", json.dumps({"sasl.password": [SECRET]}))
    monkeypatch.setenv("RELAY_PUBLISHER_OPTIONS", json.dumps([SECRET]))
    told = problems(database_url=f"mysql://x:{SECRET}@db", rabbitmq={"url": [SECRET]}, http_token=[SECRET])
    assert len(told) >= 6
    assert SECRET not in "\n".join(told)


def test_a_publisher_gets_its_own_section_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = full_of_secrets(monkeypatch)

    def section(publisher: str) -> dict[str, Any]:
        return settings.model_copy(update={"publisher": publisher}).publisher_section()

    assert section("kafka")["config"]["sasl.password"] == SECRET
    assert section("rabbitmq")["url"] == f"amqp://relay:{SECRET}@mq/"
    assert section("webhook")["secret"] == {"a.example": SECRET}
    assert section("carrier-pigeon") == {
        "password": SECRET,
        "format": "plain",
        "destination": "outbox.events",
        "receipts": True,
    }


def test_a_publisher_is_told_when_nobody_keeps_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [
        make(completion=each).publisher_section()["receipts"] for each in ("keep", "archive", "delete")
    ] == [
        True,
        True,
        False,
    ]


def test_one_webhook_secret_may_be_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_WEBHOOK__SECRET", SECRET)
    assert make(publisher="webhook").publisher_section()["secret"] == SECRET


def test_a_variable_that_should_be_json_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_KAFKA", "localhost:9092")
    assert problems() == ["RELAY_KAFKA must be JSON, or use RELAY_KAFKA__…"]


def test_the_health_file_is_a_path_and_none_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make().health_file is None
    monkeypatch.setenv("RELAY_HEALTH_FILE", "/run/relay/health")
    assert make().health_file == Path("/run/relay/health")
    assert make().describe()["health_file"] == "/run/relay/health"
