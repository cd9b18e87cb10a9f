"""The bookkeeping of a publish call, against a model of a broker."""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from publishers.amqp_flight import Flight, Lane, Message, conclude
from publishers.classify import Trouble
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.testing import make_event

LOST = Unconfirmed("lost", "broker")
STUCK = Unconfirmed("stuck", "destination")


def messages(*specs: tuple[str, str]) -> list[Message]:
    """One message for each pair of a key and an exchange."""
    lanes: dict[str, Lane] = defaultdict(Lane)
    return [
        Message(
            make_event(key, destination=exchange), lanes[key], exchange, "rk", Delivered(f"{exchange}/rk")
        )
        for key, exchange in specs
    ]


@dataclass
class Model:
    """Takes what a flight sends; `missing`, `poison` and `full` say what it does not take, and how."""

    flight: Flight
    rng: Random
    missing: set[str]
    poison: set[str]
    unroutable: set[str]
    full: set[str]
    per_key: int
    queue: list[Message] = field(default_factory=list)
    judged: list[Message] = field(default_factory=list)  # what it has looked at, taken or not
    closed: int = 0
    tag: int = 0
    waiting: list[tuple[int, bool]] = field(default_factory=list)  # confirms to come: tag, whether an ack
    closing: tuple[Trouble, str] | None = None  # decided, and not heard of yet: nothing is taken any more

    def run(self) -> None:
        steps = 0
        while not self.flight.done:
            steps += 1
            assert steps < 10_000, "the flight does not end"
            message = self.flight.take() if self.rng.random() < 0.7 else None
            if message is not None:
                self.send(message)
            elif self.closing and (not self.waiting or self.rng.random() < 0.5):
                self.close(*self.closing)
            elif self.waiting:
                self.answer()

    def send(self, message: Message) -> None:
        self.tag += 1
        self.flight.unconfirmed[self.tag] = message
        lane = [each for each in self.flight.unconfirmed.values() if each.lane is message.lane]
        assert not self.per_key or len(lane) <= self.per_key
        event_id = message.event.event_id
        if self.closing:
            return
        self.judged.append(message)
        if message.exchange in self.missing:
            self.closing = Trouble.DESTINATION, f"NOT_FOUND - no exchange '{message.exchange}' in vhost '/'"
        elif event_id in self.poison:
            self.closing = Trouble.RECORD, "PRECONDITION_FAILED"
        elif event_id in self.full:
            self.waiting.append((self.tag, False))
        else:
            if message is self.flight.probe and self.rng.random() < 0.5:
                self.flight.passed()
            if event_id in self.unroutable:
                self.flight.give_back(event_id)
            else:
                self.queue.append(message)
            self.waiting.append((self.tag, True))

    def close(self, trouble: Trouble, reason: str) -> None:
        self.waiting.clear()
        self.tag, self.closing = 0, None
        self.closed += 1
        self.flight.interrupt(trouble, reason)

    def answer(self) -> None:
        acks_before = 0
        while acks_before < len(self.waiting) and self.waiting[acks_before][1]:
            acks_before += 1
        if acks_before > 1 and self.rng.random() < 0.5:
            taken = self.rng.randrange(1, acks_before)
            self.flight.confirm(self.waiting[taken][0], True)
            del self.waiting[: taken + 1]
            return
        tag, ack = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        (self.flight.confirm if ack else self.flight.refuse)(tag, False)


@given(
    seed=st.integers(0, 2**32),
    keys=st.integers(1, 6),
    size=st.integers(0, 60),
    window=st.sampled_from([1, 3, 1000]),
    per_key=st.sampled_from([0, 1, 2]),
    trouble=st.sampled_from(["none", "missing", "poison", "unroutable", "full", "mixed"]),
)
@example(seed=1, keys=3, size=60, window=1000, per_key=0, trouble="mixed")
@example(seed=6, keys=6, size=50, window=3, per_key=0, trouble="mixed")
@example(seed=1405, keys=6, size=8, window=1000, per_key=0, trouble="mixed")  # closed again in a half
def test_whatever_a_broker_answers_order_holds_and_only_the_guilty_fail(
    seed: int, keys: int, size: int, window: int, per_key: int, trouble: str
) -> None:
    rng = Random(seed)
    batch = messages(*((f"k{rng.randrange(keys)}", f"x{rng.randrange(3)}") for _ in range(size)))
    ids = [message.event.event_id for message in batch]

    def some(kind: str) -> set[str]:
        return set(rng.sample(ids, min(len(ids), 2))) if trouble in (kind, "mixed") else set()

    missing = {"x1"} if trouble in ("missing", "mixed") else set()
    proven = set(rng.sample(["x0", "x1", "x2"], rng.randrange(4)))
    flight = Flight(batch, window, per_key, proven)
    model = Model(
        flight,
        rng,
        missing,
        some("poison"),
        some("unroutable"),
        set() if per_key != 1 else some("full"),
        per_key,
    )
    model.run()
    outcomes = conclude(batch, LOST, LOST)
    assert outcomes == _expected(batch, model, outcomes)
    _assert_first_occurrences_in_order(model.queue)
    taken = {message.event.event_id for message in model.queue}
    for message, outcome in zip(batch, outcomes, strict=True):
        assert not isinstance(outcome, Delivered) or message.event.event_id in taken
    assert model.closed or {message.exchange for message in model.queue} <= proven
    assert not proven & missing & {message.exchange for message in model.judged}


def _expected(batch: list[Message], model: Model, outcomes: list[Outcome]) -> list[Outcome]:
    """The first guilty event of each key fails in its own way, what is behind it is held up."""
    expected: list[Outcome] = []
    stopped: set[str] = set()
    for message, outcome in zip(batch, outcomes, strict=True):
        event_id = message.event.event_id
        if message.event.key in stopped:
            assert isinstance(outcome, Unconfirmed)
            assert "held up" in outcome.reason
        elif message.exchange in model.missing:
            assert isinstance(outcome, Unconfirmed)
            assert outcome.scope == "destination"
            assert message.exchange in outcome.reason
        elif event_id in model.poison:
            assert outcome == Refused("PRECONDITION_FAILED")
        elif event_id in model.unroutable | model.full:
            assert isinstance(outcome, Unconfirmed)
            assert (outcome.scope, outcome.holds) == ("destination", "route")
        else:
            expected.append(message.delivered)
            continue
        stopped.add(message.event.key)
        expected.append(outcome)
    return expected


def _assert_first_occurrences_in_order(queue: list[Message]) -> None:
    latest: dict[str, int] = {}
    for message in dict.fromkeys(queue):
        assert message.event.position > latest.get(message.event.key, 0)
        latest[message.event.key] = message.event.position


def test_an_exchange_that_is_not_proven_is_tried_by_one_message_alone() -> None:
    flight = Flight(messages(("a", "x"), ("b", "new"), ("c", "new"), ("d", "x")), 1000, 1, {"x"})
    first = flight.take()
    assert first is not None
    flight.unconfirmed[1] = first
    assert flight.take() is None  # the trial waits until nothing else is out
    flight.confirm(1, False)
    trial = flight.take()
    assert trial is not None
    assert trial.exchange == "new"
    flight.unconfirmed[2] = trial
    assert flight.take() is None  # and nothing joins it
    flight.passed()
    assert [message.exchange for message in iter(flight.take, None)] == ["new", "x"]


def test_what_got_past_a_refused_event_of_its_key_is_counted_and_not_reported_delivered() -> None:
    batch = messages(("a", "x"), ("a", "x"))
    flight = Flight(batch, 1000, 0, {"x"})
    for tag in (1, 2):
        message = flight.take()
        assert message is not None
        flight.unconfirmed[tag] = message
    flight.refuse(1, False)
    flight.confirm(2, False)
    assert flight.done
    assert flight.overtaken == 1
    assert [isinstance(outcome, Delivered) for outcome in conclude(batch, LOST, LOST)] == [False, False]


def test_a_confirm_costs_what_it_confirms_however_many_went_before_on_its_channel() -> None:
    batch = messages(*((f"k{n}", "x") for n in range(10)))
    flight = Flight(batch, 1000, 1, {"x"})
    first = 10**12
    for tag, message in enumerate(iter(flight.take, None), first):
        flight.unconfirmed[tag] = message
    flight.confirm(first + 3, False)
    flight.confirm(first + 5, True)
    assert list(flight.unconfirmed) == [first + 6, first + 7, first + 8, first + 9]
    flight.confirm(first + 5, True)  # nothing that is left
    flight.confirm(first + 9, True)
    assert flight.done
    assert conclude(batch, LOST, LOST) == [message.delivered for message in batch]


def test_what_is_stuck_is_told_from_a_broker_that_is_silent() -> None:
    """By whether anything else was confirmed, and nothing to the same address."""
    batch = messages(("a", "x"), ("b", "x"), ("c", "y"))
    flight = Flight(batch, 1000, 1, {"x", "y", "bad"})
    for tag, message in enumerate(iter(flight.take, None), 1):
        flight.unconfirmed[tag] = message
    assert conclude(batch, LOST, STUCK) == [LOST] * 3
    flight.confirm(1, False)
    assert conclude(batch, LOST, STUCK) == [batch[0].delivered, LOST, STUCK]


def test_an_exchange_that_the_broker_does_not_name_is_found_by_halves() -> None:
    batch = messages(*((f"k{n}", "bad" if n == 5 else "x") for n in range(8)))
    flight = Flight(batch, 1000, 1, {"x", "y", "bad"})
    rounds = 0
    while not flight.done:
        rounds += 1
        for tag, message in enumerate(iter(flight.take, None), 1):
            flight.unconfirmed[tag] = message
        if any(message.exchange == "bad" for message in flight.unconfirmed.values()):
            flight.interrupt(Trouble.DESTINATION, "ACCESS_REFUSED")
        else:
            flight.confirm(len(flight.unconfirmed), True)
    assert rounds > 3
    outcomes = conclude(batch, LOST, LOST)
    assert [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Delivered)] == [5]
    assert outcomes[5] == Unconfirmed("ACCESS_REFUSED", "destination")


def test_what_kills_a_connection_by_itself_costs_its_event_an_attempt() -> None:
    batch = messages(("a", "x"))
    flight = Flight(batch, 1000, 1, {"x", "y", "bad"})
    message = flight.take()
    assert message is not None
    flight.unconfirmed[1] = message
    flight.interrupt(Trouble.FATAL, "FRAME_ERROR")
    assert conclude(batch, LOST, LOST) == [Unconfirmed("FRAME_ERROR", "event")]
