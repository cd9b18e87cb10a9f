"""RabbitMQ nodes for tests: each has its own name, ports, directories and Erlang port mapper."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pika
import pika.exceptions

from relay.demo.postgres import ServerError, free_port, launch
from tests.servers.process import ServerProcess, accepts_connections, wait_until

# Not the programs in /usr/sbin: as root, those go over to the user rabbitmq.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")


class RabbitNode(ServerProcess):
    name = "rabbitmq"

    def __init__(
        self, *, plugins: Sequence[str] = (), settings: Mapping[str, str | int] | None = None
    ) -> None:
        """`settings` are lines of its rabbitmq.conf."""
        if not (PROGRAMS / "rabbitmq-server").exists():
            raise ServerError("RabbitMQ is not installed: make servers.")
        super().__init__()
        self.port = free_port()
        self._dist_port = free_port()
        self._mapper_port = free_port()
        self._plugins = plugins
        self._settings: dict[str, str | int] = {"disk_free_limit.absolute": "50MB", **(settings or {})}
        self._mapper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node; returns what it printed."""
        done = subprocess.run(
            [PROGRAMS / "rabbitmqctl", "--quiet", *arguments],
            env=self._env(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"rabbitmqctl {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def stop(self) -> None:
        super().stop()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None

    def _prepare(self) -> None:
        (self.home / "plugins").write_text(f"[{','.join(self._plugins)}].\n")
        lines = [f"{name} = {value}\n" for name, value in self._settings.items()]
        (self.home / "rabbitmq.conf").write_text("".join(lines))
        if self._mapper is None or self._mapper.poll() is not None:
            # Erlang would start one that nobody ends.
            with (self.home / "epmd.log").open("ab") as log:
                self._mapper = launch(["epmd"], log, env=self._env())
            wait_until(lambda: accepts_connections(self._mapper_port), 10, "epmd to answer")

    def _env(self) -> Mapping[str, str]:
        home = str(self.home)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": home,  # where the Erlang cookie is
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"relay-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_PID_FILE": f"{home}/node.pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
            "RUNNING_UNDER_SYSTEMD": "1",  # the script then becomes the server instead of its parent
        }

    def _argv(self) -> Sequence[str]:
        return [str(PROGRAMS / "rabbitmq-server")]

    def _answers(self) -> bool:
        if not accepts_connections(self.port):
            return False
        try:
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True
