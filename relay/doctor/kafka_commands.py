"""Commands of Kafka's own tools that fix a topic, as an operator would type them. Pure."""

import json
from collections.abc import Sequence
from shlex import quote

DEFAULT_PARTITIONS = 12


class Commands:
    def __init__(self, servers: str, *, secured: bool = False, user: str = "…") -> None:
        self._user = user
        # How to log in is the operator's own to know: not the relay's user, and no secret is printed.
        self.where = f"--bootstrap-server {quote(servers)}" + (
            " --command-config client.properties" if secured else ""
        )

    def create(self, topic: str, replicas: int) -> str:
        insync = f" --config min.insync.replicas={replicas - 1}" if replicas > 2 else ""
        return (
            f"kafka-topics.sh {self.where} --create --topic {quote(topic)}"
            f" --partitions {DEFAULT_PARTITIONS} --replication-factor {replicas}{insync}"
        )

    def describe(self, topic: str) -> str:
        return f"kafka-topics.sh {self.where} --describe --topic {quote(topic)}"

    def allow(self, topic: str, *operations: str) -> str:
        listed = " ".join(f"--operation {operation}" for operation in operations)
        principal = quote(f"User:{self._user}")
        return (
            f"kafka-acls.sh {self.where} --add --allow-principal {principal} {listed} --topic {quote(topic)}"
        )

    def configure(self, topic: str, name: str, value: object) -> str:
        return (
            f"kafka-configs.sh {self.where} --alter --entity-type topics --entity-name {quote(topic)}"
            f" --add-config {name}={value}"
        )

    def reassign(
        self, topic: str, partitions: Sequence[Sequence[int]], brokers: Sequence[int], copies: int
    ) -> str:
        """More copies of each partition: those it has, and the brokers that follow in turn."""
        plan = {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": number, "replicas": _spread(present, brokers, number, copies)}
                for number, present in enumerate(partitions)
            ],
        }
        text = quote(json.dumps(plan, separators=(",", ":")))
        return (
            f"echo {text} > reassign.json\n"
            f"kafka-reassign-partitions.sh {self.where} --reassignment-json-file reassign.json --execute"
        )


def _spread(present: Sequence[int], brokers: Sequence[int], number: int, copies: int) -> list[int]:
    others = sorted(set(brokers) - set(present))
    turn = number % len(others) if others else 0
    return [*present, *others[turn:], *others[:turn]][: max(copies, len(present))]
