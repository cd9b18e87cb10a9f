"""Secrets show nowhere: not in logs, data, errors, pages or metrics, whatever goes wrong."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from relay.demo.postgres import PostgresServer, free_port
from relay.logs import redact
from tests.conftest import Kafka
from tests.integration.cli_kit import invoke, nowhere
from tests.integration.cli_kit import relay as command
from tests.servers.web import WebServer, answer
from tests.system.relays import RelayProcess, insert, wait_until

__all__ = ["nowhere"]

Start = Callable[..., RelayProcess]
SECRETS = {
    name: f"sesame-{name}-0123456789"
    for name in (
        "database",
        "rabbitmq",
        "management",
        "sasl",
        "key",
        "webhook",
        "userinfo",
        "path",
        "query",
        "row",
        "http",
        "operator",
        "plugin",
    )
}
PAGES = ("/", "/metrics", "/livez", "/readyz", "/api/session")
LOOKS = (
    "live",
    "workers",
    "waiting",
    "events",
    "dead-letters",
    "pauses",
    "audit",
    "doctor",
    "event?id=evt-1",
)


def clean(text: str) -> None:
    """No part of any secret that could be told from other text."""
    for name, secret in SECRETS.items():
        at = text.find(secret[:-3])
        assert at < 0, f"the secret of {name} shows: …{text[max(0, at - 200) : at + 60]}…"


def with_password(url: str, password: str) -> str:
    parts = urlsplit(url)
    user = parts.username or "postgres"
    return parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()


def settings(database: str, **more: str) -> dict[str, str]:
    """Every secret there is, whether the publisher uses it or not."""
    return {
        "RELAY_DATABASE_URL": with_password(database, SECRETS["database"]),
        "RELAY_RABBITMQ__URL": f"amqp://guest:{SECRETS['rabbitmq']}@127.0.0.1:{free_port()}/%2F",
        "RELAY_RABBITMQ__MANAGEMENT_URL": f"http://guest:{SECRETS['management']}@127.0.0.1:{free_port()}",
        "RELAY_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "RELAY_KAFKA__CONFIG": json.dumps(
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "relay",
                "sasl.password": SECRETS["sasl"],
                "ssl.key.password": SECRETS["key"],
            }
        ),
        "RELAY_PUBLISHER": "stdout",
        "RELAY_WEBHOOK__SECRET": SECRETS["webhook"],
        "RELAY_WEBHOOK__ALLOW_PRIVATE": "true",
        "RELAY_HTTP_TOKEN": SECRETS["http"],
        "RELAY_OPERATOR_TOKEN": SECRETS["operator"],
        "RELAY_PUBLISHER_OPTIONS": json.dumps({"password": SECRETS["plugin"], "anything": SECRETS["plugin"]}),
    } | more


@pytest.fixture
def hook() -> Iterator[WebServer]:
    with WebServer(behave=answer(500, body=b"no")) as server:
        yield server


@pytest.fixture(params=["kafka", "rabbitmq", "webhook"])
def failing(
    request: pytest.FixtureRequest, database: str, kafka: Kafka, rabbitmq: str, hook: WebServer
) -> tuple[dict[str, str], str]:
    """Settings under which nothing is published, and a word of what the relay says then."""
    match request.param:
        case "kafka":
            # A broker that knows no passwords: the client's login is not understood.
            return settings(database, RELAY_KAFKA__BOOTSTRAP_SERVERS=kafka.address), "Kafka|kafka"
        case "rabbitmq":
            url = with_password(rabbitmq, SECRETS["rabbitmq"])
            return settings(database, RELAY_RABBITMQ__URL=url), "refused the login"
    parts = urlsplit(hook.url(f"/{SECRETS['path']}?token={SECRETS['query']}"))
    url = parts._replace(netloc=f"user:{SECRETS['userinfo']}@{parts.netloc}").geturl()
    return settings(database, RELAY_DESTINATION=url), "500"


def test_a_relay_that_fails_and_all_who_look_at_it_show_no_secret(
    failing: tuple[dict[str, str], str],
    request: pytest.FixtureRequest,
    database: str,
    relay: Start,
    nowhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment, trouble = failing
    publisher = request.node.callspec.params["failing"]
    environment |= {"RELAY_PUBLISHER": publisher}
    insert(database, 3, 3)
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, destination) VALUES ('a', 'B', '1', %s)",
            [f"http://u:{SECRETS['row']}@127.0.0.1:9/{SECRETS['row']}"],
        )
    process = relay(database, environment=environment | {"RELAY_HTTP": "127.0.0.1:0"})
    wait_until(lambda: re.search(rf'"level": "(warning|error)".*({trouble})', process.log), what="trouble")
    for text in read_pages(process):
        clean(text)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for arguments in (["doctor"], ["doctor", "--json"], ["status", "--json"], ["workers", "--json"]):
        result = invoke(*arguments)
        assert result.exit_code in (0, 1), result.stderr
        assert publisher in result.stdout or arguments[0] != "doctor"
        clean(result.stdout + result.stderr)
    with psycopg.connect(database) as conn:
        for query in (
            "SELECT metadata::text FROM outbox_workers",
            "SELECT coalesce(last_error, '') FROM outbox",
            "SELECT reason FROM outbox_pauses",
            "SELECT details::text FROM outbox_audit",
            "SELECT coalesce(query, '') || application_name FROM pg_stat_activity",
        ):
            for (text,) in conn.execute(query).fetchall():
                clean(text)
    process.terminate()
    assert process.wait() == 0, process.log
    clean(process.log + json.dumps(process.lines))


def read_pages(process: RelayProcess) -> Iterator[str]:
    """What the relay's address says to anybody, and then to an operator."""
    wait_until(lambda: "http://" in process.log, what="its address")
    match = re.search(r"http://127\.0\.0\.1:\d+", process.log)
    assert match is not None
    base = match[0]
    opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def get(path: str, **headers: str) -> str:
        try:
            with opener.open(Request(base + path, headers=headers), timeout=60) as response:
                return str(response.headers) + response.read().decode()
        except HTTPError as error:
            with error:
                return str(error.headers) + error.read().decode()

    for path in PAGES:
        yield get(path)
    token = json.dumps({"token": SECRETS["operator"], "name": "jo"}).encode()
    headers = {"Origin": base, "Content-Type": "application/json"}
    with opener.open(Request(f"{base}/api/sign-in", token, headers), timeout=60) as response:
        assert json.load(response)["role"] == "operator"
        yield str(response.headers)
    for look in LOOKS:
        yield get(f"/api/{look}")
    wait_until(lambda: '"running":false' in get("/api/doctor").replace(" ", ""), what="the doctor's findings")
    yield get("/api/doctor")


COMMANDS = (
    ["migrate", "--json"],
    ["migrate", "--dry-run"],
    ["sql", "--json"],
    ["sql", "--roles"],
    ["version", "--json"],
    ["status"],
    ["events", "--json"],
    ["show", "evt-1", "--json"],
    ["show", "of-a-row-with-a-url"],
    ["workers"],
    ["pause", "--destination", f"https://u:{SECRETS['row']}@example.com/{SECRETS['row']}", "--json"],
    ["status", "--json"],
    ["resume", "--destination", f"https://u:{SECRETS['row']}@example.com/{SECRETS['row']}"],
    ["retry", "--status", "failed", "--dry-run", "--json"],
    ["skip", "evt-1", "--reason", "test", "--dry-run", "--json"],
    ["prune", "--dry-run", "--json"],
    ["replay", "--all", "--dry-run", "--json"],
    ["doctor", "--after-restore", "--json"],
    ["bench", "--help"],
    ["run", "--help"],
    ["doctor", "--help"],
)


def test_no_command_shows_a_secret(database: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(database, 2, 2)
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key, destination)"
            " VALUES ('a', 'B', '1', 'of-a-row-with-a-url', %s)",
            [f"https://u:{SECRETS['row']}@example.com/{SECRETS['row']}"],
        )
    url = f"https://u:{SECRETS['userinfo']}@example.com/{SECRETS['path']}?t={SECRETS['query']}"
    for name, value in settings(database, RELAY_PUBLISHER="webhook", RELAY_DESTINATION=url).items():
        monkeypatch.setenv(name, value)
    for arguments in COMMANDS:
        result = invoke(*arguments)
        assert result.exit_code == 0, (arguments, result.stderr)
        assert result.stdout + result.stderr, arguments
        clean(result.stdout + result.stderr)


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://{user}:{secret}'{secret}@{host}:{port}{path}",
        "postgresql://{user}:{secret}%20%2C{secret}@{host}:{port}{path}",
        "postgresql://{host}:{port}{path}?user={user}&password={secret},{secret}",
        "postgresql://{host}:{port}{path}?user={user}&passw%6Frd={secret}",
        "host={host} port={port} user={user} dbname={name} password={secret},{secret};{secret}",
        "host={host} port={port} user={user} dbname={name} password={secret}\\ {secret}",
        "host={host} port={port} user={user} dbname={name} password='{secret}\\' {secret}'",
    ],
)
def test_a_password_of_the_database_shows_nowhere_however_it_is_written(
    form: str, database: str, nowhere: Path
) -> None:
    parts = urlsplit(database)
    url = form.format(
        user=parts.username or "postgres",
        host=parts.hostname,
        port=parts.port,
        path=parts.path,
        name=parts.path[1:],
        secret=SECRETS["database"],
    )
    result = invoke("status", "--json", "--database-url", url)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["settings"]["database_url"]
    clean(result.stdout + result.stderr)
    # What any log line would make of it, now that the settings have been read.
    clean(redact(f"cannot reach {url} with {conninfo_to_dict(url)}"))


MISTAKES = [
    {"RELAY_DATABASE_URL": f"postgresql://u:{SECRETS['database']}@127.0.0.1:{{port}}/db"},
    {"RELAY_DATABASE_URL": f"postgresql://u:{SECRETS['database']}@127.0.0.1:not-a-port/db"},
    {"RELAY_DATABASE_URL": f"host=127.0.0.1 port={{port}} password='{SECRETS['database']} x"},
    {"RELAY_DATABASE_URL": f"host=127.0.0.1 port={{port}} password={SECRETS['database']} nonsense=1"},
    {"RELAY_PUBLISHER": "rabbitmq", "RELAY_RABBITMQ__URL": f"amqq://u:{SECRETS['rabbitmq']}@h/"},
    {"RELAY_PUBLISHER": "rabbitmq", "RELAY_RABBITMQ__URL": f"amqp://u:{SECRETS['rabbitmq']}@h:x/"},
    {"RELAY_RABBITMQ": SECRETS["rabbitmq"]},
    {"RELAY_RABBITMQ__PASSWORD": SECRETS["rabbitmq"]},
    {"RELAY_PUBLISHER": "kafka", "RELAY_KAFKA__CONFIG": json.dumps({"sasl.password": [SECRETS["sasl"]]})},
    {"RELAY_PUBLISHER": "kafka", "RELAY_KAFKA__CONFIG": f"{{'sasl.password': '{SECRETS['sasl']}'}}"},
    {"RELAY_PUBLISHER": "kafka", "RELAY_KAFKA__CONFIG": json.dumps({"sasl.pasword": SECRETS["sasl"]})},
    {
        "RELAY_PUBLISHER": "kafka",
        "RELAY_KAFKA__CONFIG": json.dumps({"ssl.key.pem": SECRETS["key"], "security.protocol": "ssl"}),
    },
    {"RELAY_PUBLISHER": "webhook", "RELAY_DESTINATION": f"ftp://h/{SECRETS['path']}"},
    {"RELAY_PUBLISHER": "webhook", "RELAY_DESTINATION": f"https://h/{{{SECRETS['path']}"},
    {"RELAY_WEBHOOK__SECRET": json.dumps({"no host": SECRETS["webhook"]}), "RELAY_PUBLISHER": "webhook"},
    {"RELAY_WEBHOOK__SECRET": json.dumps([SECRETS["webhook"]])},
    {"RELAY_HTTP_TOKEN": SECRETS["http"], "RELAY_OPERATOR_TOKEN": SECRETS["http"]},
    {"RELAY_HTTP_TOKEN": SECRETS["http"][:15]},
    {"RELAY_PUBLISHER_OPTIONS": SECRETS["plugin"]},
]


def mistaken(wrong: Mapping[str, str]) -> dict[str, str]:
    """All settings, with this mistake; there is no database."""
    port = str(free_port())
    filled = {name: value.replace("{port}", port) for name, value in wrong.items()}
    return settings(f"postgresql://postgres@127.0.0.1:{port}/db") | filled


@pytest.mark.parametrize("wrong", MISTAKES, ids="-".join)
def test_no_mistake_in_a_setting_shows_a_secret(
    wrong: Mapping[str, str], nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in mistaken(wrong).items():
        monkeypatch.setenv(name, value)
    result = invoke("doctor", "--json")
    assert result.exit_code in (1, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    clean(result.stdout + result.stderr)


@pytest.mark.parametrize("wrong", [each for each in MISTAKES if "RELAY_PUBLISHER" in each], ids="-".join)
def test_no_relay_that_cannot_start_shows_a_secret(wrong: Mapping[str, str], nowhere: Path) -> None:
    done = command("run", **mistaken(wrong))
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("error: ")
    clean(done.stdout + done.stderr)


def test_a_wrong_password_of_the_database_is_a_sentence_without_it(nowhere: Path) -> None:
    with PostgresServer.embedded() as server:
        url = with_password(server.url(), SECRETS["database"])
        for arguments in (["run"], ["status", "--json"], ["--database-url", url]):
            flags = ["migrate", *arguments] if arguments[0].startswith("--") else arguments
            done = command(*flags, RELAY_DATABASE_URL=url, RELAY_PUBLISHER="stdout")
            assert done.returncode == 1
            assert "password authentication failed" in done.stderr
            assert "Traceback" not in done.stderr
            clean(done.stdout + done.stderr)


def test_a_settings_file_that_cannot_be_read_shows_no_secret(nowhere: Path) -> None:
    (nowhere / "relay.toml").write_text(f'database_url = "postgresql://u:{SECRETS["database"]}@h/d" oops\n')
    result = invoke("status")
    assert result.exit_code == 2
    clean(result.stdout + result.stderr)


def test_this_test_would_see_a_secret() -> None:
    with pytest.raises(AssertionError, match="the secret of sasl shows"):
        clean(f"a log line with {SECRETS['sasl'][:-2]}")
