"""A sleeping relay is woken by an insert; writers pay for it only while somebody sleeps."""

import time

import pytest

from relay.store.wake import FLAG_SECONDS, Alarm
from tests.integration.store_kit import Actor, Stage

pytestmark = pytest.mark.usefixtures("any_postgres")


@pytest.fixture
def sleeper(stage: Stage) -> tuple[Actor, Alarm]:
    actor = stage.actor()
    alarm = Alarm(actor.table)
    alarm.listen(actor.conn)
    return actor, alarm


def notified(actor: Actor, seconds: float) -> bool:
    return any(True for _ in actor.conn.notifies(timeout=seconds, stop_after=1))


def test_an_insert_wakes_a_relay_that_sleeps(stage: Stage, sleeper: tuple[Actor, Alarm]) -> None:
    actor, alarm = sleeper
    assert alarm.arm(actor.conn), "the flag was down: look once more"
    assert not alarm.arm(actor.conn), "it is up: sleep"
    stage.insert("a")
    assert notified(actor, 30.0)


def test_nobody_is_notified_while_nobody_sleeps(stage: Stage, sleeper: tuple[Actor, Alarm]) -> None:
    actor, _ = sleeper
    stage.insert("a")
    stage.sql.execute(f"NOTIFY {actor.table.channel}, 'end'")
    (first,) = actor.conn.notifies(timeout=30.0, stop_after=1)
    assert first.payload == "end"


def test_a_rolled_back_insert_wakes_nobody(stage: Stage, sleeper: tuple[Actor, Alarm]) -> None:
    actor, alarm = sleeper
    alarm.arm(actor.conn)
    with stage.sql.transaction(force_rollback=True):
        stage.insert("a")
    stage.sql.execute(f"NOTIFY {actor.table.channel}, 'end'")
    (first,) = actor.conn.notifies(timeout=30.0, stop_after=1)
    assert first.payload == "end"


def test_the_flag_lowers_itself(stage: Stage, sleeper: tuple[Actor, Alarm]) -> None:
    actor, alarm = sleeper
    alarm.arm(actor.conn)
    left = "SELECT extract(epoch FROM asleep_until - clock_timestamp())::float8 FROM outbox_wake"
    assert 0 < stage.value(left) <= FLAG_SECONDS


def test_the_flag_is_raised_once_for_many_sleepers(stage: Stage, sleeper: tuple[Actor, Alarm]) -> None:
    actor, alarm = sleeper
    alarm.arm(actor.conn)
    before = stage.value("SELECT xmin::text FROM outbox_wake")
    other = stage.actor("other")
    assert Alarm(other.table).arm(other.conn)
    assert stage.value("SELECT xmin::text FROM outbox_wake") == before


def test_a_sleep_ends_with_the_first_notification(stage: Stage, sleeper: tuple[Actor, Alarm]) -> None:
    actor, alarm = sleeper
    alarm.arm(actor.conn)
    stage.insert("a")
    started = time.monotonic()
    assert alarm.sleep(actor.conn, 60.0)
    assert time.monotonic() - started < 30.0
    assert not alarm.sleep(actor.conn, 0.01)


def test_a_notification_that_came_with_the_last_answer_is_not_slept_over(
    stage: Stage, sleeper: tuple[Actor, Alarm]
) -> None:
    actor, alarm = sleeper
    alarm.arm(actor.conn)
    stage.insert("a")
    actor.conn.execute("SELECT")
    started = time.monotonic()
    assert alarm.sleep(actor.conn, 60.0)
    assert time.monotonic() - started < 30.0


def test_the_alarm_of_one_outbox_does_not_wake_another(stage: Stage, sleeper: tuple[Actor, Alarm]) -> None:
    from relay.names import TableName
    from relay.store.migrate import migrate

    actor, _ = sleeper
    other = TableName.parse("other_outbox")
    migrate(stage.url, other)
    neighbour = stage.actor("neighbour", table=other)
    assert neighbour.table.channel != actor.table.channel
    Alarm(neighbour.table).arm(neighbour.conn)
    assert stage.value("SELECT asleep_until < clock_timestamp() FROM outbox_wake")
