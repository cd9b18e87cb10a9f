"""What a relay of the fault suite runs in place of its publisher: the real one, made unreliable.

Loading it puts failpoints between the steps of the worker and tells the audit trigger which worker a session
belongs to and which generation a settle believes to hold. The product has no hooks for any of that.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

from psycopg import Connection

from publishers.kafka import KafkaPublisher
from publishers.rabbitmq import RabbitPublisher
from relay.event import Event
from relay.outcome import Outcome, Publisher, Refused, Unconfirmed
from relay.store import claim as claims
from relay.store import connection, reap, settle
from relay.store.claim import Claiming
from relay.store.look import Look
from relay.store.settle import Settling
from relay.worker.registration import Registration
from tests.faults.failpoints import Failpoints, Step
from tests.system.journal import JournalPublisher

PUBLISHER = "tests.faults.child:publisher"
POISON = "Poison"
INJECTED = "injected"
HELD_UP = Unconfirmed("held up")


def publisher(options: Mapping[str, Any]) -> Publisher:
    """`kind` names the real publisher, `failures` the share that fails, `failpoints` the directory."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # a suite that is killed leaves no relays behind
    own = dict(options)
    kinds: dict[str, Callable[[Mapping[str, Any]], Publisher]] = {
        "kafka": KafkaPublisher,
        "rabbitmq": RabbitPublisher,
        "journal": JournalPublisher,
    }
    real = kinds[own.pop("kind")]
    failures, failpoints = own.pop("failures"), Failpoints(Path(own.pop("failpoints")))
    install(failpoints)
    return UnreliablePublisher(real(own), failures, failpoints)


class UnreliablePublisher:
    """Refuses poison; of all else a share is not confirmed, whether it was sent or not."""

    def __init__(self, real: Publisher, failures: float, failpoints: Failpoints) -> None:
        self._real = real
        self._failures = failures
        self._failpoints = failpoints
        self._dice = Random(os.getpid())

    @property
    def incidents(self) -> Mapping[str, int]:
        return getattr(self._real, "incidents", {})

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        outcomes: list[Outcome | None] = []
        stopped: set[str] = set()
        sent: list[int] = []
        for index, event in enumerate(events):
            if event.key in stopped:
                outcomes.append(HELD_UP)
                continue
            failure, goes_out = self._fate(event)
            outcomes.append(failure)
            if goes_out:
                sent.append(index)
            if failure:
                stopped.add(event.key)
        results = self._real.publish([events[index] for index in sent], deadline)
        self._failpoints.hit("after publishing")
        for index, result in zip(sent, results, strict=True):
            outcomes[index] = outcomes[index] or result
        return [outcome for outcome in outcomes if outcome]

    def close(self) -> None:
        self._real.close()

    def _fate(self, event: Event) -> tuple[Outcome | None, bool]:
        """How it fails, if it does, and whether it is sent."""
        if event.event_type == POISON:
            return Refused("poison"), False
        if self._dice.random() >= self._failures:
            return None, True
        sent = self._dice.random() < 0.5
        reason = f"{INJECTED}: {'its confirmation got lost' if sent else 'it was not sent'}"
        return Unconfirmed(reason, retry_after=self._dice.random() * 0.5), sent


_settles: ContextVar[int] = ContextVar("generation", default=0)


def install(failpoints: Failpoints) -> None:
    """Put failpoints between the steps of every worker of this process."""
    _in_claims(failpoints)
    _after(Claiming, "claim", lambda look: _hit_if_claimed(failpoints, look, "after a claim"))
    _around_settles(failpoints)
    reap.transaction = _ending(reap.transaction, lambda: failpoints.hit("in the middle of a reap"))  # type: ignore[attr-defined]
    _name_sessions()


def _in_claims(failpoints: Failpoints) -> None:
    """Claims go statement by statement where somebody is to suffer between them, else now and then."""
    original, own_transaction = Claiming.claim, claims.own_transaction  # type: ignore[attr-defined]
    dice = Random()

    def method(self: Claiming, conn: Connection[Any], scan: Any, limits: Any) -> Look:
        self.stepwise = dice.random() < 0.2 or failpoints.armed("in the middle of a claim")
        return original(self, conn, scan, limits)

    @contextmanager
    def transaction(conn: Connection[Any]) -> Iterator[None]:
        with own_transaction(conn):
            yield
            if conn.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() != (None,):
                failpoints.hit("in the middle of a claim")

    Claiming.claim = method  # type: ignore[method-assign]
    claims.own_transaction = transaction  # type: ignore[attr-defined]


def _hit_if_claimed(failpoints: Failpoints, look: Look, step: Step) -> None:
    if look.claim:
        failpoints.hit(step)


def _after(owner: type, name: str, then: Any) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        then(result)
        return result

    setattr(owner, name, method)


def _ending(original: Any, then: Any) -> Any:
    @contextmanager
    def transaction(conn: Connection[Any]) -> Iterator[None]:
        with original(conn):
            yield
            then()

    return transaction


def _around_settles(failpoints: Failpoints) -> None:
    original = Settling.settle

    def method(self: Settling, conn: Connection[Any], claim: Any, settlements: Any) -> None:
        failpoints.hit("before a settle")
        _settles.set(claim.generation)
        original(self, conn, claim, settlements)
        failpoints.hit("after a settle")

    @contextmanager
    def transaction(conn: Connection[Any]) -> Iterator[None]:
        with connection.transaction(conn):
            conn.execute("SELECT set_config('faults.generation', %s, true)", [str(_settles.get())])
            yield
            failpoints.hit("in the middle of a settle")

    Settling.settle = method  # type: ignore[method-assign]
    settle.settings_hold = transaction  # type: ignore[attr-defined]


def _name_sessions() -> None:
    original = Registration._connect

    def connect(self: Registration, settings: Any, purpose: str, **session: str) -> Any:
        pid, nonce = self.worker.split("-")[-2:]
        return original(self, settings, f"{purpose} {pid}-{nonce}", **session)

    Registration._connect = connect  # type: ignore[method-assign]
