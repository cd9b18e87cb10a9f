"""Replaying: what was published goes out again, key by key, marked, recorded, and no row changes."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import relay.replay
from publishers.memory import MemoryPublisher
from relay.errors import RelayError
from relay.event import Event
from relay.message import plain_headers
from relay.outcome import Delivered, Outcome, Publisher, Refused, Unconfirmed
from relay.replay import Replay
from relay.settlement import Settlement
from relay.store import replay as store
from relay.store.replay import Record, Selection, Tally
from tests.integration.cli_kit import failure, invoke, nowhere
from tests.integration.cli_kit import relay as relay_command
from tests.integration.operator_kit import answer, audit, rows, url
from tests.integration.store_kit import Actor, Stage, wait_until

__all__ = ["nowhere", "url"]

EVERYTHING = Selection()


def publish(stage: Stage, key: str, n: int, completion: str = "keep", **columns: Any) -> list[int]:
    """n events of a key that were published."""
    positions = stage.insert(key, n, **columns)
    worker = stage.actor(f"worker of {key}", completion=completion)
    claim = worker.must_claim(rows=1000)
    worker.settle(claim, Settlement("complete", receipt="somewhere"))
    return positions


class Rig:
    """A replay of its own, or one that goes on, with a publisher of the test."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.operator: Actor = stage.actor("operator")

    def replay(
        self,
        publisher: Publisher,
        selection: Selection = EVERYTHING,
        name: str = "r-1",
        rate: float | None = None,
        patience: float = 60.0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Replay:
        conn, table = self.operator.conn, self.operator.table
        record = store.recall(conn, table, name)
        if record is None:
            begun = store.begin(conn, table, "ann", name, selection)
            record = Record(begun, "started", None, Tally())
        return Replay(
            conn,
            table,
            publisher,
            name,
            record,
            actor="ann",
            destination="events",
            publish_seconds=10.0,
            rate=rate,
            patience=patience,
            stopping=stopping,
        )

    def run(self, publisher: Publisher, *arguments: Any, **words: Any) -> Replay:
        replaying = self.replay(publisher, *arguments, **words)
        for _ in replaying.run():
            pass
        return replaying

    def recorded(self) -> Record:
        record = store.recall(self.operator.conn, self.operator.table, "r-1")
        assert record is not None
        return record


@pytest.fixture
def rig(stage: Stage) -> Rig:
    return Rig(stage)


def by_key(events: Sequence[Event]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event.key, []).append(event.position)
    return found


# What goes out.


@pytest.mark.usefixtures("any_postgres")
def test_completed_and_archived_events_go_out_key_by_key_in_order_and_nothing_changes(
    stage: Stage, rig: Rig
) -> None:
    expected: dict[str, list[int]] = {}
    for completion in ("keep", "archive", "keep"):
        for key in ("a", "b", "c"):
            expected.setdefault(key, []).extend(publish(stage, key, 3, completion))
    stage.insert("a", 1)  # neither this one nor what was parked
    before = stage.everything()
    memory = MemoryPublisher()
    replaying = rig.run(memory)
    assert replaying.done
    assert replaying.tally == Tally(published=27)
    assert by_key(memory.delivered) == expected
    keys = [event.key for event in memory.delivered]
    assert sum(a != b for a, b in pairwise(keys)) == 2, "keys are mixed"
    assert stage.everything() == before


def test_a_replayed_message_is_the_first_one_with_two_headers_more(stage: Stage, rig: Rig) -> None:
    stage.insert("a", 1, headers='{"own": "kept", "replay_id": "forged"}', destination="elsewhere")
    worker = stage.actor()
    claim = worker.must_claim()
    worker.settle(claim)
    memory = MemoryPublisher()
    rig.run(memory)
    (first,), (again,) = claim.events, memory.delivered
    headers = dict(plain_headers(again))
    assert headers.pop("replay_id") == "r-1"
    assert headers.pop("replayed_at") > headers["created_at"]
    assert headers == dict(plain_headers(first))
    assert again._replace(marks=None) == first


def test_pages_and_batches_leave_nothing_out_and_repeat_nothing(
    stage: Stage, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ROWS_PER_PAGE", 7)
    monkeypatch.setattr(relay.replay, "EVENTS_PER_BATCH", 3)
    expected = {
        key: publish(stage, key, 9, "archive" if key < "k5" else "keep")
        for key in map("k{}".format, range(9))
    }
    memory = MemoryPublisher()
    rig.run(memory)
    assert by_key(memory.delivered) == expected


@pytest.mark.parametrize(
    "selection, found",
    [
        (Selection(), {1, 2, 3, 4, 5}),
        (Selection(key="a"), {1, 2, 4, 5}),
        (Selection(event_type="Odd"), {2}),
        (Selection(ids=("e-1", "e-4", "e-6", "none")), {1, 4}),
    ],
)
def test_filters_choose(stage: Stage, rig: Rig, selection: Selection, found: set[int]) -> None:
    publish(stage, "a", 1, idempotency_key="e-1")
    publish(stage, "a", 1, idempotency_key="e-2", event_type="Odd")
    publish(stage, "b", 1, idempotency_key="e-3")
    publish(stage, "a", 1, "archive", idempotency_key="e-4")
    publish(stage, "a", 1, "archive", idempotency_key="e-5")
    stage.insert("a", 1, idempotency_key="e-6")
    conn, table = rig.operator.conn, rig.operator.table
    assert store.count(conn, table, selection).value == len(found)
    memory = MemoryPublisher()
    rig.run(memory, selection)
    assert {event.event_id for event in memory.delivered} == {f"e-{n}" for n in found}


def test_times_are_those_of_the_publication_and_a_replay_ends_where_it_began(stage: Stage, rig: Rig) -> None:
    for n in range(4):
        publish(stage, f"k{n}", 1, "archive" if n % 2 else "keep")
    for table in ("outbox", "outbox_archive"):
        stage.sql.execute(f"UPDATE {table} SET completed_at = completed_at - (4 - id) * interval '1 hour'")
    now = stage.value("SELECT clock_timestamp()")
    some = Selection(since=now - timedelta(hours=2, minutes=30), until=now - timedelta(minutes=30))
    memory = MemoryPublisher()
    rig.run(memory, some)
    assert sorted(event.position for event in memory.delivered) == [2, 3]

    def meanwhile(event: Event) -> Outcome:
        publish(stage, f"new-{event.position}", 1)
        return Delivered()

    assert rig.run(MemoryPublisher(decide=meanwhile), name="r-2").tally.published == 4


def test_counts_are_exact_up_to_a_bound(stage: Stage, rig: Rig) -> None:
    publish(stage, "a", 3)
    publish(stage, "b", 3, "archive")
    conn, table = rig.operator.conn, rig.operator.table
    counted = [store.count(conn, table, EVERYTHING, rows) for rows in (6, 5)]
    assert [(count.value, count.exact) for count in counted] == [(6, True), (5, False)]


# When the broker does not do as it should.


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("scope", ["event", "destination", "broker"])
def test_what_is_not_confirmed_goes_out_again_and_each_key_stays_in_order(
    stage: Stage, rig: Rig, scope: Any
) -> None:
    expected = {key: publish(stage, key, 4) for key in ("a", "b")}
    failures = {expected["a"][1]: 2, expected["b"][0]: 1}

    def decide(event: Event) -> Outcome:
        failures[event.position] = failures.get(event.position, 0) - 1
        return Unconfirmed("no answer", scope=scope) if failures[event.position] >= 0 else Delivered()

    memory = MemoryPublisher(decide=decide)
    assert rig.run(memory).tally == Tally(published=8)
    assert by_key(memory.delivered) == expected


def test_an_event_that_is_refused_is_recorded_and_its_key_goes_on(stage: Stage, rig: Rig, url: str) -> None:
    first, bad, last = publish(stage, "a", 3)
    memory = MemoryPublisher(
        decide=lambda event: Refused("too large") if event.position == bad else Delivered()
    )
    assert rig.run(memory).tally == Tally(published=2, refused=1)
    assert by_key(memory.delivered) == {"a": [first, last]}
    (refused,) = rows(url, "SELECT event_id, details FROM outbox_audit WHERE event_id IS NOT NULL")
    assert refused["event_id"] == stage.row(bad)["idempotency_key"]
    assert refused["details"] == {"replay_id": "r-1", "refused": "too large"}


def test_a_broker_that_confirms_nothing_ends_the_replay_with_a_sentence(stage: Stage, rig: Rig) -> None:
    publish(stage, "a", 1, idempotency_key="evt-1")
    silent = MemoryPublisher(decide=lambda _: Unconfirmed("no answer"))
    with pytest.raises(RelayError, match=r"event evt-1 was not confirmed within 0\.2 s: no answer"):
        rig.run(silent, patience=0.2)
    assert rig.recorded().state == "stopped"
    assert rig.run(MemoryPublisher()).tally == Tally(published=1)


def test_a_wrong_setting_ends_the_replay_at_once(stage: Stage, rig: Rig) -> None:
    publish(stage, "a", 2)
    wrong = MemoryPublisher(decide=lambda _: Unconfirmed("bad password", scope="settings"))
    with pytest.raises(RelayError, match="the publisher's settings are wrong: bad password"):
        rig.run(wrong)
    assert rig.recorded().tally == Tally()


class Broken:
    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        raise ValueError("a bug")

    def close(self) -> None:
        pass


def test_a_publisher_that_raises_ends_the_replay_with_a_sentence(stage: Stage, rig: Rig) -> None:
    publish(stage, "a", 1)
    with pytest.raises(RelayError, match="the publisher failed: ValueError: a bug"):
        rig.run(Broken())


def test_events_that_were_deleted_meanwhile_are_counted(stage: Stage, rig: Rig) -> None:
    publish(stage, "a", 3)

    def gone(query: str) -> None:
        if "convert_to" in query:
            rig.operator.gate.before = None
            stage.sql.execute("DELETE FROM outbox WHERE id = 2")

    rig.operator.gate.before = gone
    assert rig.run(MemoryPublisher()).tally == Tally(published=2, missing=1)


# Stopping and going on.


@pytest.mark.usefixtures("any_postgres")
def test_a_replay_that_stopped_goes_on_where_it_was(
    stage: Stage, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay.replay, "EVENTS_PER_BATCH", 4)
    expected = {key: publish(stage, key, 10) for key in ("a", "b")}
    memory = MemoryPublisher()
    stopped = rig.run(memory, stopping=lambda: len(memory.delivered) >= 8)
    assert not stopped.done
    assert rig.recorded().state == "stopped"
    assert rig.recorded().tally == Tally(published=8)
    assert rig.run(memory).done
    assert rig.recorded().tally == Tally(published=20)
    assert by_key(memory.delivered) == expected


def test_a_batch_that_was_not_confirmed_as_a_whole_goes_out_again_with_the_same_replay_id(
    stage: Stage, rig: Rig
) -> None:
    expected = publish(stage, "a", 3)
    answers: Iterator[Outcome] = iter([Delivered(), Unconfirmed("no answer")])
    memory = MemoryPublisher(decide=lambda _: next(answers))
    assert not rig.run(memory, stopping=lambda: len(memory.delivered) > 0).done
    assert rig.recorded().tally == Tally()
    again = MemoryPublisher()
    rig.run(again)
    assert by_key(again.delivered) == {"a": expected}
    assert {event.marks["replay_id"] for event in memory.delivered + again.delivered if event.marks} == {
        "r-1"
    }


def test_a_replay_that_is_killed_goes_on_from_its_last_record(
    stage: Stage, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay.replay, "EVENTS_PER_BATCH", 2)
    monkeypatch.setattr(relay.replay, "SECONDS_BETWEEN_RECORDS", 0.0)
    expected = publish(stage, "a", 6)
    memory = MemoryPublisher()
    steps: Iterator[Tally] = rig.replay(memory).run()
    assert next(steps).published == 2
    killed = rig.recorded()
    assert (killed.state, killed.tally) == ("running", Tally(published=2))
    rest = MemoryPublisher()
    rig.run(rest)
    assert by_key(rest.delivered) == {"a": expected[2:]}


def test_one_process_at_a_time_runs_a_replay(stage: Stage, rig: Rig) -> None:
    other = stage.actor("another")
    assert store.alone(rig.operator.conn, rig.operator.table, "r-1")
    assert not store.alone(other.conn, other.table, "r-1")
    assert store.alone(other.conn, other.table, "r-2")
    rig.operator.close()
    wait_until(lambda: store.alone(other.conn, other.table, "r-1"), "the lock of the session that ended")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_no_more_events_go_out_in_a_second_than_the_rate_allows(
    stage: Stage, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(stage, "a", 200)
    clock = Clock()
    monkeypatch.setattr(relay.replay, "monotonic", clock.monotonic)
    monkeypatch.setattr(relay.replay, "sleep", clock.sleep)
    times: list[float] = []

    def decide(event: Event) -> Outcome:
        times.append(clock.now)
        return Delivered()

    memory = MemoryPublisher(decide=decide)
    assert rig.run(memory, rate=50.0).tally.published == 200
    assert max(sum(t <= other < t + 1 for other in times) for t in times) <= 51
    assert 3.5 < times[-1] - times[0] < 4.5


# The command.

command = pytest.mark.usefixtures("nowhere")


class Interrupting:
    """Asks the process to stop while it publishes."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        pass

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        signal.raise_signal(signal.SIGINT)
        return [Delivered()] * len(events)

    def close(self) -> None:
        pass


class Misconfigured(Interrupting):
    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        return [Unconfirmed("bad password", scope="settings")] * len(events)


class Refusing(Interrupting):
    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        return [Refused("too large")] * len(events)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@command
def test_the_command_publishes_marks_and_records(stage: Stage, url: str) -> None:
    publish(stage, "a", 3)
    result = invoke("replay", "--key", "a", "--publisher", "stdout", "--replay-id", "r-1", "--actor", "ann")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines() == ["replay r-1: 3 events", "3 events were published again"]
    printed = lines(result.stdout)
    assert [line["headers"]["position"] for line in printed] == ["1", "2", "3"]
    assert {line["headers"]["replay_id"] for line in printed} == {"r-1"}
    assert {entry[:2] for entry in audit(url)} == {("ann", "replay")}
    states = rows(url, "SELECT details ->> 'state' AS state FROM outbox_audit ORDER BY id")
    assert [row["state"] for row in states] == ["started", "done"]
    again = invoke("replay", "--replay-id", "r-1", "--publisher", "stdout")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "replay r-1 is done" in again.stderr


@command
def test_a_dry_run_counts_publishes_nothing_and_leaves_no_record(stage: Stage, url: str) -> None:
    publish(stage, "a", 2)
    publish(stage, "b", 1, "archive")
    said = answer("replay", "--all", "--publisher", "stdout", "--dry-run")
    assert (said["matched"], said["exact"], said["published"], said["dry_run"]) == (3, True, 0, True)
    assert audit(url) == []


@command
def test_ctrl_c_finishes_what_is_in_hand_and_says_how_to_go_on(stage: Stage, url: str) -> None:
    publish(stage, "a", 300)
    plugin = f"{__name__}:Interrupting"
    result = invoke(
        "replay", "--all", "--yes", "--rate", "0", "--replay-id", "r 1", "--publisher", plugin, "--json"
    )
    assert result.exit_code == 130, (result.stdout, result.stderr)
    said = json.loads(result.stdout)
    assert (said["state"], said["published"]) == ("stopped", 200)
    assert "to go on: relay replay --replay-id 'r 1'" in result.stderr
    rest = invoke("replay", "--replay-id", "r 1", "--all", "--yes", "--publisher", "stdout", "--rate", "0")
    assert len(lines(rest.stdout)) == 100
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@command
@pytest.mark.parametrize("begun", [False, True], ids=["new", "stopped before"])
def test_a_replay_that_another_command_ran_while_this_one_asked_is_not_run_by_it(
    stage: Stage, url: str, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    publish(stage, "a", 300)
    arguments = ("replay", "--all", "--yes", "--rate", "0", "--replay-id", "r-1", "--publisher")
    if begun:
        assert invoke(*arguments, f"{__name__}:Interrupting").exit_code == 130

    def meanwhile(*_: object, **__: object) -> None:
        other = relay_command(*arguments, "stdout")
        assert other.returncode == 0, other.stderr
        assert len(lines(other.stdout)) == (100 if begun else 300)

    monkeypatch.setattr("relay.cli.replay.ask", meanwhile)
    assert failure(invoke(*arguments, "stdout")) == (
        "replay r-1 went on in another process meanwhile, and nothing was published here; to see how far it"
        " came: relay replay --replay-id r-1 --dry-run --json"
    )
    states = [row["state"] for row in rows(url, "SELECT details ->> 'state' AS state FROM outbox_audit")]
    assert states.count("started") == states.count("done") == 1


@command
def test_a_wrong_setting_is_a_sentence(stage: Stage, url: str) -> None:
    publish(stage, "a", 1)
    arguments = ("replay", "--all", "--replay-id", "r-1", "--publisher", f"{__name__}:Misconfigured")
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "error: the publisher's settings are wrong: bad password; to go on: relay replay --replay-id r-1"
    )


@command
def test_a_replay_of_which_something_was_refused_has_failed(stage: Stage, url: str) -> None:
    publish(stage, "a", 2)
    result = invoke("replay", "--all", "--replay-id", "r-1", "--publisher", f"{__name__}:Refusing")
    assert result.exit_code == 1
    assert "2 events refused by the broker" in result.stderr
    assert invoke("replay", "--replay-id", "r-1", "--publisher", "stdout").exit_code == 0  # it is done


@command
def test_under_delete_it_says_that_nothing_is_left(
    stage: Stage, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(stage, "a", 1, "delete")
    monkeypatch.setenv("RELAY_COMPLETION", "delete")
    assert failure(invoke("replay", "--all", "--publisher", "stdout")) == (
        'nothing is left to replay: with completion = "delete" events are gone once they are published'
    )


@command
def test_what_cannot_be_meant_is_refused(stage: Stage, url: str) -> None:
    publish(stage, "a", 1)
    stage.insert("a", 1, idempotency_key="evt-new")
    assert "Name event ids or filters, or --all alone" in failure(invoke("replay"), 2)
    assert "Name event ids or filters, or --all alone" in failure(invoke("replay", "--all", "--key", "a"), 2)
    assert failure(invoke("replay", "--until", "soon"), 2).startswith("--until soon is no time")
    assert failure(invoke("replay", "evt-new")) == "none of these events is published: look with 'relay show'"
    invoke("replay", "--key", "a", "--publisher", "stdout", "--replay-id", "r-1")
    assert failure(invoke("replay", "--key", "b", "--replay-id", "r-1"), 2) == (
        "replay r-1 began with other filters: leave them out, or name another --replay-id"
    )


@command
def test_many_events_are_replayed_only_by_those_who_mean_it(stage: Stage, url: str) -> None:
    publish(stage, "a", 101)
    assert failure(invoke("replay", "--all", "--publisher", "stdout"), 2) == (
        "to publish again concerns 101 events: add --yes to do it without asking"
    )
