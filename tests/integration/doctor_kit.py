"""An outbox under examination in tests: its settings, what is found, and the printed fixes, really run.

A fix is run as an operator would: SQL by the owner of the tables, the rest by a shell that has `relay`,
`psql`, and Kafka's and RabbitMQ's own tools. What it exports are the settings of the next examination.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from relay.doctor import Finding, examine
from relay.settings import Settings
from tests.servers.process import wait_until

ROOT = Path(__file__).parent.parent.parent
KAFKA_TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}


class Clinic:
    """`home` is where its commands run and what they leave stays."""

    def __init__(self, database: str, home: Path, **settings: str) -> None:
        self.database = database  # as the owner of the tables
        self.home = home
        self.environment = {"RELAY_DATABASE_URL": database, "RELAY_PUBLISHER": "stdout"} | settings

    @property
    def settings(self) -> Settings:
        values: dict[str, Any] = {}
        for name, value in self.environment.items():
            *sections, last = name.removeprefix("RELAY_").lower().split("__")
            inner = values
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = json.loads(value) if last == "config" else value
        return Settings(**values)

    def examine(self) -> list[Finding]:
        return examine(self.settings)

    def faults(self, family: str) -> list[Finding]:
        """What is wrong or worth knowing in this family; an examination always looks at it."""
        found = [finding for finding in self.examine() if finding.family == family]
        assert found, f"nothing was said of {family}"
        return [finding for finding in found if not finding.fine]

    def fault(self, family: str, about: str) -> Finding:
        """The one finding of the family whose `what` says this."""
        found = self.faults(family)
        (finding,) = [each for each in found if about in each.what] or [*found, None][:1]
        assert finding is not None, f"nothing is wrong with {family}"
        assert about in finding.what, finding
        assert finding.why
        return finding

    def healed(self, family: str, about: str) -> bool:
        return not any(about in finding.what for finding in self.faults(family))

    def fix(self, finding: Finding) -> None:
        """Run its commands, line by line, as printed."""
        assert finding.fix, f"no command fixes: {finding}"
        for line in finding.fix.splitlines():
            if line.endswith(";"):
                self.sql(line)
            else:
                self.shell(line)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database, autocommit=True) as conn:
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def shell(self, line: str) -> str:
        """Run it; what it exports is set from then on."""
        done = subprocess.run(
            ["sh", "-ec", f"{line}\nenv -0 > exported"],
            cwd=self.home,
            env=self._variables(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        exported = dict(
            entry.split("=", 1) for entry in (self.home / "exported").read_text().split("\0") if entry
        )
        self.environment |= {name: value for name, value in exported.items() if name.startswith("RELAY_")}
        return done.stdout

    def _variables(self) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        path = f"{self._tools()}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.home), "COLUMNS": "200"}
        return inherited | own | self.environment

    def _tools(self) -> Path:
        tools = self.home / "bin"
        if not tools.exists():
            tools.mkdir()
            _program(tools / "relay", f"{sys.executable} -m relay")
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            java = f"java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp '{cache}/outbox-relay/kafka-4.1.0/*'"
            for name, tool in KAFKA_TOOLS.items():
                _program(tools / name, f"{java} {tool}")
        return tools


def _program(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def finds_and_fixes(
    clinic: Clinic, family: str, about: str, severity: str, *, within: float = 0.0
) -> Finding:
    """The fault is found, its fix is run as printed, and the fault is gone."""
    finding = clinic.fault(family, about)
    assert finding.severity == severity, finding
    clinic.fix(finding)
    if within:
        wait_until(lambda: clinic.healed(family, about), within, f"'{about}' to be gone")
    assert clinic.healed(family, about)
    return finding


@contextmanager
def session(url: str, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that has run these and lives on."""
    conn = psycopg.connect(url, autocommit=True)
    try:
        for statement in statements:
            conn.execute(statement)
        yield conn
    finally:
        conn.close()


Doctor = Callable[..., Clinic]
