"""Prints one JSON object per event on standard output: for pipes, for trying things out."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from relay.event import Event
from relay.message import plain_headers
from relay.outcome import Delivered, Outcome


class StdoutPublisher:
    def __init__(self, options: Mapping[str, Any] | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        lines = [_line(event) for event in events]
        self._stream.write("".join(lines))
        self._stream.flush()
        return [Delivered("stdout")] * len(events)

    def close(self) -> None:
        self._stream.flush()


def _line(event: Event) -> str:
    head = json.dumps(
        {"destination": event.destination, "headers": dict(plain_headers(event))}, ensure_ascii=False
    )
    # The payload as PostgreSQL printed it, not parsed and printed again.
    return f'{head[:-1]}, "payload": {event.payload.decode()}}}\n'
