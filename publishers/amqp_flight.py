"""Which message goes out next, and what became of each: the bookkeeping of one publish call. Pure.

Guarantees: at most `per_key` messages of a key are unconfirmed at a time; once one of a key has failed,
nothing behind it goes out; messages whose channel was closed under them go out again, in their order and
before anything behind them.

A missing or refused exchange closes the channel under everybody. So an exchange that has not proved itself
is first tried by one message, the probe, while nothing else is on its way. Which record was refused, a
closed channel does not say: what was unconfirmed goes out again in halves, each half alone, until one is
refused by itself.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from publishers.classify import Trouble, outcome
from relay.event import Event
from relay.outcome import HELD_UP, Delivered, Outcome, Unconfirmed


@dataclass(slots=True)
class Lane:
    """One key: its messages that wait for earlier ones to be confirmed."""

    waiting: deque["Message"] = field(default_factory=deque)
    stopped_at: int | None = None  # the position of its first message that failed


@dataclass(slots=True, eq=False)
class Message:
    event: Event
    lane: Lane
    exchange: str
    routing_key: str
    delivered: Delivered  # its outcome once it is confirmed: the same object for all of one address
    doomed: Outcome | None = None  # its outcome when its turn comes, if that is known beforehand
    outcome: Outcome | None = None
    returned: bool = False

    def fail(self, result: Outcome) -> None:
        """Nothing behind it in its lane goes out any more; what is before it still may, again."""
        self.outcome = result
        first = self.lane.stopped_at
        self.lane.stopped_at = self.event.position if first is None else min(first, self.event.position)

    @property
    def held_up(self) -> bool:
        """An earlier one of its lane has failed."""
        return self.lane.stopped_at is not None and self.event.position > self.lane.stopped_at

    @property
    def address(self) -> str:
        return f"exchange '{self.event.destination}' with routing key '{self.routing_key}'"


class Flight:
    def __init__(self, messages: Sequence[Message], window: int, per_key: int, proven: set[str]) -> None:
        """`proven` are exchanges that took a message before; another is tried with one message alone."""
        self.messages = messages
        self.unconfirmed: dict[int, Message] = {}  # by delivery tag
        self.overtaken = 0
        self._window = window
        self._proven = proven
        self._refusing: dict[str, Outcome] = {}
        self._ready: deque[Message] = deque()
        self._groups: deque[deque[Message]] = deque()  # each goes out alone, before all that is ready
        self._group: deque[Message] = deque()
        self._alone = False
        self.probe: Message | None = None  # the one that tries an exchange
        self._by_id: dict[str, list[Message]] = {}
        self._admit(per_key)

    def _admit(self, per_key: int) -> None:
        admitted: dict[int, int] = defaultdict(int)
        for message in self.messages:
            number = id(message.lane)
            if per_key == 0 or admitted[number] < per_key:
                admitted[number] += 1
                self._ready.append(message)
            else:
                message.lane.waiting.append(message)

    @property
    def done(self) -> bool:
        return not (self.unconfirmed or self._ready or self._group or self._groups)

    def take(self) -> Message | None:
        """The next message that may go out now; None while there is none."""
        while len(self.unconfirmed) < self._window:
            if self._group:
                message = self._group.popleft()
            elif self._alone or self._groups:
                if self.unconfirmed:
                    return None
                self._alone = bool(self._groups)
                if self._groups:
                    self._group = self._groups.popleft()
                continue
            elif self._ready:
                message = self._ready.popleft()
                if message.exchange not in self._proven and message.exchange not in self._refusing:
                    self.probe = message
                    self._groups.append(deque([message]))
                    continue
            else:
                return None
            if message.held_up:
                continue
            doom = message.doomed or self._refusing.get(message.exchange)
            if doom is None:
                return message
            message.fail(doom)
        return None

    def passed(self) -> None:
        """The channel is still open after the probe: its exchange exists, others need not wait."""
        if self.probe is not None:
            self._proven.add(self.probe.exchange)
            self.probe, self._alone = None, False

    def confirm(self, tag: int, multiple: bool) -> None:
        """The broker has taken the message of this tag, and with `multiple` all before it."""
        for message in self._settled(tag, multiple):
            if message.returned:
                reason = f"no queue takes {message.address}: bind one to the exchange"
                message.fail(Unconfirmed(reason, "destination", holds="route"))
                continue
            message.outcome = message.delivered
            lane = message.lane
            if message.held_up:
                self.overtaken += 1
            elif lane.stopped_at is None and lane.waiting:
                self._ready.append(lane.waiting.popleft())

    def refuse(self, tag: int, multiple: bool) -> None:
        """The broker has not taken it: a queue is full or has failed."""
        for message in self._settled(tag, multiple):
            reason = f"a queue behind {message.address} refused the message: it may be full"
            message.fail(Unconfirmed(reason, "destination", holds="route"))

    def give_back(self, event_id: str) -> None:
        """The message was routed to no queue. Its confirm follows all the same."""
        if not self._by_id:
            for message in self.messages:
                self._by_id.setdefault(message.event.event_id, []).append(message)
        for message in self._by_id.get(event_id, ()):
            message.returned = True

    def interrupt(self, trouble: Trouble, reason: str) -> None:
        """What is unconfirmed lost its channel: find whose fault that was, and send the others again."""
        stranded, rest = list(self.unconfirmed.values()), self._group
        self.unconfirmed.clear()
        self._group = deque()
        self._alone = False
        self.probe = None
        for message in stranded:
            message.returned = False
        if trouble is Trouble.DESTINATION and (exchange := _exchange_at_fault(stranded, reason)) is not None:
            self._proven.discard(exchange)
            self._refusing[exchange] = outcome(trouble, reason)
            self._put_back([*stranded, *rest])
        elif len(stranded) == 1:
            # What kills the connection by itself costs it an attempt: it may be the record, or not.
            stranded[0].fail(Unconfirmed(reason) if trouble is Trouble.FATAL else outcome(trouble, reason))
            self._put_back(rest)
        else:
            middle = (len(stranded) + 1) // 2
            parts = (deque(stranded[:middle]), deque(stranded[middle:]), rest)
            self._groups.extendleft(part for part in reversed(parts) if part)

    def _put_back(self, messages: Sequence[Message]) -> None:
        """They go out next; before groups too, which may hold later ones of their keys."""
        if self._groups and messages:
            self._groups.appendleft(deque(messages))
        else:
            self._ready.extendleft(reversed(messages))

    def _settled(self, tag: int, multiple: bool) -> list[Message]:
        # Tags grow as long as a channel is open, through any number of flights.
        first = next(iter(self.unconfirmed), tag + 1) if multiple else tag
        tags = range(first, tag + 1)
        pop = self.unconfirmed.pop
        settled = [message for each in tags if (message := pop(each, None)) is not None]
        if self.probe is not None and self.probe in settled:
            self.passed()
        return settled


def conclude(messages: Sequence[Message], missing: Unconfirmed, stuck: Unconfirmed) -> list[Outcome]:
    """One outcome each; nothing behind a failure of its key counts.

    What has none is `missing`; but `stuck` where others were confirmed and nothing of its own address was.
    """
    alive = {message.delivered for message in messages if message.outcome is message.delivered}
    concluded: list[Outcome] = []
    stopped: set[int] = set()
    for message in messages:
        result, lane = message.outcome, id(message.lane)
        if stopped and lane in stopped:
            concluded.append(HELD_UP)
            continue
        if result is None:
            result = stuck if alive and message.delivered not in alive else missing
        if result is not message.delivered:
            stopped.add(lane)
        concluded.append(result)
    return concluded


def _exchange_at_fault(unconfirmed: Sequence[Message], reason: str) -> str | None:
    """The broker's sentence names the exchange; where that leaves a doubt, None."""
    exchanges = {message.exchange: message.event.destination for message in unconfirmed}
    if len(exchanges) > 1:
        exchanges = {exchange: name for exchange, name in exchanges.items() if f"exchange '{name}'" in reason}
    return next(iter(exchanges)) if len(exchanges) == 1 else None
