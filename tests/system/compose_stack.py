"""compose.yaml without containers: its services as processes, with their own commands and environments.

What a container would have is taken from the files: the image's ENV, the entrypoint, the environment, the
secrets, the order of `depends_on`, the health checks. Only addresses differ: names of services become those
of the servers of the tests, ports become free ones, and the shop gets a name of its own.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml

from relay.demo.postgres import free_port
from tests.system.relays import ROOT

COMPOSE = ROOT / "compose"
IMAGE_ENV = re.compile(r"^ENV (.*RELAY_HTTP.*)$", re.MULTILINE)
HEALTHY_SECONDS = 60.0
SETTING = re.compile(r"(RELAY_\w+|PYTHON\w+)=(\S+)")


class Stack:
    def __init__(
        self,
        directory: Path,
        servers: Mapping[str, str],
        secrets: Mapping[str, str],
        shop: str,
        **variables: str,
    ) -> None:
        """`servers` maps host:port of compose.yaml to where they are; `secrets` replaces contents."""
        self._directory = directory
        self._servers = servers
        self._shop = shop
        self._variables = variables
        self.services: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())[
            "services"
        ]
        self.ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._secrets = directory / "secrets"
        subprocess.run(["sh", str(COMPOSE / "secrets.sh"), str(self._secrets)], check=True)
        for name, content in secrets.items():
            (self._secrets / name).write_text(f"{content}\n")

    def up(self, *names: str) -> None:
        """Start these, those they depend on first, and wait until all are healthy."""
        begun = [instance for name in names for instance in self._begin(name)]
        for instance in begun:
            self._wait(instance)

    def _begin(self, name: str) -> list[str]:
        if self._is_server(name) or self._started(name):
            return []
        needed = self.services[name].get("depends_on", {})
        begun = [instance for other in needed for instance in self._begin(other)]
        if self._is_one_shot(name):
            self.run(name)
            return begun
        replicas = self.services[name].get("deploy", {}).get("replicas", 1)
        own = [f"{name}-{number + 1}" for number in range(replicas)]
        for instance in own:
            self._launch_instance(instance)
        return begun + own

    def run(self, name: str) -> None:
        process = self._launch(name, name)
        assert process.wait(60) == 0, self.log(name)
        self.processes[name] = process

    def start(self, instance: str) -> None:
        """Start one more of a service: `relay-3`."""
        self._launch_instance(instance)
        self._wait(instance)

    def stop(self, *instances: str) -> list[int]:
        """As `docker compose stop`: SIGTERM, and the exit codes."""
        for instance in instances:
            self.processes[instance].send_signal(signal.SIGTERM)
        return [self.processes.pop(instance).wait(60) for instance in instances]

    def log(self, instance: str) -> str:
        return (self._directory / f"{instance}.log").read_text(errors="replace")

    def kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _is_server(self, name: str) -> bool:
        return "build" not in self.services[name]

    def _is_one_shot(self, name: str) -> bool:
        conditions = [
            service["depends_on"][name]["condition"]
            for service in self.services.values()
            if isinstance(service.get("depends_on"), dict) and name in service["depends_on"]
        ]
        return "service_completed_successfully" in conditions

    def _started(self, name: str) -> bool:
        return any(instance in (name, f"{name}-1") for instance in self.processes)

    def _launch(self, instance: str, name: str) -> "subprocess.Popen[bytes]":
        target = self.services[name]["build"]["target"]
        directory = ROOT if target == "example" else self._directory  # where the example's image has its code
        with (self._directory / f"{instance}.log").open("wb") as log:
            return subprocess.Popen(
                ["sh", str(COMPOSE / "image/entrypoint"), *self.services[name]["command"]],
                env=self._environment(instance, name),
                cwd=directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _environment(self, instance: str, name: str) -> dict[str, str]:
        (of_image,) = IMAGE_ENV.findall((COMPOSE / "Dockerfile").read_text())
        found = dict(SETTING.findall(of_image))
        found |= {key: str(value) for key, value in self.services[name].get("environment", {}).items()}
        port = str(self.ports.get(instance, 0))
        found = {key: self._mapped(value) for key, value in found.items()}
        found["RELAY_HTTP"] = found["RELAY_HTTP"].replace("0.0.0.0:9108", f"127.0.0.1:{port}")
        found |= {key: port for key in found if key == "PORT"} | {"SHOP_NAME": self._shop}
        found["RELAY_DESTINATION"] = found["RELAY_DESTINATION"].replace("shop.", f"{self._shop}.")
        return found | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

    def _mapped(self, value: str) -> str:
        value = re.sub(
            r"\$\{(\w+):\+([^}]*)\}", lambda found: found[2] if self._variables.get(found[1]) else "", value
        )
        for server, native in self._servers.items():
            value = value.replace(server, native)
        return value.replace("/run/secrets", str(self._secrets))

    def _launch_instance(self, instance: str) -> None:
        self.ports[instance] = free_port()
        self.processes[instance] = self._launch(instance, instance.rpartition("-")[0])

    def _wait(self, instance: str) -> None:
        deadline = monotonic() + HEALTHY_SECONDS
        while not self._healthy(instance):
            assert monotonic() < deadline, f"{instance} is not healthy: {self.log(instance)}"
            sleep(0.2)  # each check is a process

    def _healthy(self, instance: str) -> bool:
        process, name = self.processes[instance], instance.rpartition("-")[0]
        assert process.poll() is None, self.log(instance)
        check: Sequence[str] = self.services[name].get("healthcheck", {}).get("test", [])
        if not check:
            return True
        kind, program, *arguments = check
        assert (kind, program) == ("CMD", "python")
        arguments = [
            re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{self.ports[instance]}", word) for word in arguments
        ]
        return subprocess.run([sys.executable, *arguments], capture_output=True, check=False).returncode == 0


@contextmanager
def stack(directory: Path, **options: Any) -> Iterator[Stack]:
    made = Stack(directory, **options)
    try:
        yield made
    finally:
        made.kill()
