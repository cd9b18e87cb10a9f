"""A publisher that several relays share, and what it tells: all that was published, in one order.

Each event is one write to the end of one file, so the file's order is the order in which they went out.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relay.event import Event
from relay.outcome import Delivered, Outcome

PUBLISHER = "tests.system.journal:JournalPublisher"


class Entry(NamedTuple):
    event_id: str
    key: str
    position: int
    generation: int
    payload: Any
    pid: int


class JournalPublisher:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._file = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        for event in events:
            payload = json.loads(event.payload)
            entry = Entry(event.event_id, event.key, event.position, event.generation, payload, os.getpid())
            os.write(self._file, f"{json.dumps(entry)}\n".encode())
        return [Delivered()] * len(events)

    def close(self) -> None:
        os.close(self._file)


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def __len__(self) -> int:
        return self._path.read_bytes().count(b"\n")

    def entries(self) -> list[Entry]:
        return [Entry(*json.loads(line)) for line in self._path.read_text().splitlines()]

    def pids(self) -> set[int]:
        return {entry.pid for entry in self.entries()}

    def duplicates(self) -> int:
        """How often events went out again; every time they said the same."""
        entries = self.entries()
        said: dict[str, tuple[Any, ...]] = {}
        for entry in entries:
            words = (entry.key, entry.position, entry.payload)
            assert said.setdefault(entry.event_id, words) == words, f"{entry} was {words} before"
        return sum(Counter(entry.event_id for entry in entries).values()) - len(said)

    def inversions(self, events: Mapping[str, int]) -> list[tuple[Entry, Entry]]:
        """First occurrences of these events (their positions) that came behind a later one of their key."""
        last: dict[str, Entry] = {}
        wrong = []
        seen: set[str] = set()
        for entry in self.entries():
            if entry.event_id in seen or entry.event_id not in events:
                continue
            seen.add(entry.event_id)
            if entry.key in last and last[entry.key].position > entry.position:
                wrong.append((last[entry.key], entry))
            else:
                last[entry.key] = entry
        return wrong
