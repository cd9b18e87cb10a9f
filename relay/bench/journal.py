"""When each event was confirmed: what a relay under test writes down, one entry a batch.

On disk, so that the relay's memory stays its own. Times are CLOCK_MONOTONIC, which all processes of a
machine share.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_HEAD = struct.Struct("dqq")


class Entry(NamedTuple):
    at: float
    positions: "array[int]"
    keys: "array[int]"  # the numbers in the keys of these; empty where nobody will ask


class Journal:
    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self.events = 0

    def write(self, at: float, positions: Iterable[int], keys: Iterable[int] = ()) -> None:
        packed, packed_keys = array("q", positions), array("q", keys)
        self._file.write(_HEAD.pack(at, len(packed), len(packed_keys)))
        self._file.write(packed.tobytes() + packed_keys.tobytes())
        self.events += len(packed)

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> Iterator[Entry]:
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            at, *numbers = _HEAD.unpack(head)
            positions, keys = array("q"), array("q")
            for values, number in zip((positions, keys), numbers, strict=True):
                values.frombytes(file.read(number * values.itemsize))
            yield Entry(at, positions, keys)


def merged(paths: Iterable[Path]) -> list[Entry]:
    """The entries of several workers by the time of their confirmation."""
    entries = [entry for path in paths for entry in read_journal(path)]
    entries.sort(key=lambda entry: entry.at)
    return entries
