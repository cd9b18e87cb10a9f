"""The publisher to standard output passes the suite of all publishers."""

import io
import json
from dataclasses import dataclass, field

import pytest

from publishers.stdout import StdoutPublisher
from relay.event import Event
from relay.testing import PublisherConformance, Received


@dataclass
class StdoutRig:
    destination: str = "outbox.events"
    stream: io.StringIO = field(default_factory=io.StringIO)

    def make(self) -> StdoutPublisher:
        return StdoutPublisher(stream=self.stream)

    def received(self, at_least: int) -> list[Received]:
        return [_received(line) for line in self.stream.getvalue().splitlines()]

    def undeliverable(self, event: Event) -> None:
        return None


def _received(line: str) -> Received:
    message = json.loads(line)
    payload = line[line.index('"payload": ') + len('"payload": ') : -1]
    return Received(message["headers"]["event_id"], payload.encode(), message["headers"])


class TestStdout(PublisherConformance):
    @pytest.fixture
    def rig(self) -> StdoutRig:
        return StdoutRig()


def test_a_line_is_one_json_object_that_names_the_destination() -> None:
    stream = io.StringIO()
    from relay.testing import make_event

    StdoutPublisher(stream=stream).publish([make_event(payload=b'{"a": 1}')], 0.0)
    assert json.loads(stream.getvalue())["payload"] == {"a": 1}
    assert json.loads(stream.getvalue())["destination"] == "outbox.events"
