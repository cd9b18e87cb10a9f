"""Prometheus for tests: the distribution's, with a configuration of the test's own."""

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from relay.demo.postgres import ServerError, free_port
from tests.servers.process import ServerProcess, accepts_connections


class Prometheus(ServerProcess):
    name = "prometheus"

    def __init__(self, configuration: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise ServerError("Prometheus is not installed: make servers.")
        super().__init__()
        self.port = free_port()
        self._program = program
        self._files = {"prometheus.yml": configuration, "alerts.yml": rules}

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP API."""
        query = urlencode(parameters)
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def value(self, query: str) -> float | None:
        """The one value of an instant query; None: it has none."""
        found = self.ask("query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _prepare(self) -> None:
        for name, content in self._files.items():
            (self.home / name).write_text(yaml.safe_dump(dict(content)))

    def _argv(self) -> Sequence[str]:
        return [
            self._program,
            f"--config.file={self.home / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.home / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def _answers(self) -> bool:
        if not accepts_connections(self.port):
            return False
        with urlopen(f"http://127.0.0.1:{self.port}/-/healthy", timeout=5) as answer:
            return bool(answer.status == 200)
