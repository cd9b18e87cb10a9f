"""`relay dashboard` as a process, and the pages in the wheel."""

import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest

from tests.integration.cli_kit import failure, nowhere, relay
from tests.integration.store_kit import insert
from tests.integration.test_packaging import built, wheel
from tests.system.relays import ROOT, wait_until
from tests.web.client import Client

__all__ = ["built", "nowhere"]


@pytest.mark.usefixtures("nowhere")
def test_the_dashboard_serves_until_it_is_stopped_and_relays_nothing(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", idempotency_key="evt-1")
    said = tmp_path / "said"
    command = [
        sys.executable,
        "-m",
        "relay",
        "dashboard",
        "--http",
        "127.0.0.1:0",
        "--database-url",
        database,
    ]
    with said.open("wb") as err:
        process = subprocess.Popen(
            command, stderr=err, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        )
    try:
        wait_until(lambda: "until you press Ctrl-C" in said.read_text())
        client = Client(int(said.read_text().split("127.0.0.1:")[1].split()[0]))
        assert "<main" in client.get("/").text
        assert client.get("/api/events").json["events"][0]["status"] == "pending"
        assert client.get("/livez").status == 200
        assert client.get("/api/workers").json["workers"] == []
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT status::text FROM outbox").fetchone() == ("pending",)


@pytest.mark.usefixtures("nowhere")
def test_a_dashboard_that_cannot_be_is_told_in_a_sentence(database: str, empty_database: str) -> None:
    off = relay("dashboard", "--http", "off", "--database-url", database)
    assert failure(off, 2) == "http = off leaves the pages nowhere to be: pass --http 127.0.0.1:9108"
    none = relay("dashboard", "--http", "127.0.0.1:0", "--database-url", empty_database)
    assert "relay migrate" in failure(none, 1)
    short = relay("dashboard", "--database-url", database, RELAY_OPERATOR_TOKEN="short")
    assert "use 12 characters or more" in failure(short, 2)
    assert "short" not in failure(short, 2).replace("shorter", "")


def test_the_wheel_brings_the_pages_along(built: Path) -> None:
    with zipfile.ZipFile(wheel(built, "from_sdist")) as package:
        shipped = {Path(name).name for name in package.namelist() if name.startswith("relay/web/static/")}
    assert shipped == {file.name for file in (ROOT / "relay" / "web" / "static").iterdir()}
    assert {"index.html", "app.js", "base.css"} <= shipped
