"""`relay pause` and `relay resume`: each subject, said and recorded; nothing done that was not meant."""

import getpass
import json
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from relay.names import TableName
from relay.pause import ALL, Subject
from relay.store import steer
from relay.store.connection import connect, resolve
from tests.integration.cli_kit import failure, invoke, nowhere
from tests.integration.operator_kit import answer, done, rows, url

__all__ = ["nowhere", "url"]
pytestmark = pytest.mark.usefixtures("nowhere")

SUBJECTS = [
    (["--all"], Subject("all", "")),
    (["--destination", "orders"], Subject("destination", "orders")),
    (["--type", "OrderPaid"], Subject("event_type", "OrderPaid")),
    (["--key", "order:1"], Subject("key", "order:1")),
]
each_subject = pytest.mark.parametrize("arguments,subject", SUBJECTS, ids=[s[1].scope for s in SUBJECTS])


def change(url: str, statement: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(statement)


def paused(url: str) -> list[dict[str, Any]]:
    return rows(url, "SELECT * FROM outbox_pauses ORDER BY scope, value, origin")


def audit(url: str) -> list[tuple[str, str, dict[str, Any]]]:
    found = rows(url, "SELECT actor, action, details FROM outbox_audit ORDER BY id")
    return [(row["actor"], row["action"], row["details"]) for row in found]


def add(url: str, *events: tuple[str, str, str | None]) -> None:
    """Events as key, type, destination."""
    with psycopg.connect(url) as conn:
        for event in events:
            conn.execute(
                "INSERT INTO outbox (partition_key, event_type, destination, payload)"
                " VALUES (%s, %s, %s, '{}')",
                event,
            )


def open_breaker(url: str, scope: str = "destination", value: str = "orders") -> None:
    with psycopg.connect(url) as conn:
        conn.execute(
            "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until, failures)"
            " VALUES (%s, %s, 'breaker', 'connection refused', 'w1', now() + interval '20 s', 7)",
            [scope, value],
        )


# Pausing.


@each_subject
def test_a_pause_is_set_said_and_recorded(url: str, arguments: list[str], subject: Subject) -> None:
    said = done(invoke("pause", *arguments, "--reason", "upgrade", "--actor", "ann"))
    assert said.splitlines()[0] == f"{subject} is paused until resumed: upgrade"
    (row,) = paused(url)
    assert Subject(row["scope"], row["value"]) == subject
    assert (row["origin"], row["reason"], row["paused_by"], row["until"]) == (
        "operator",
        "upgrade",
        "ann",
        None,
    )
    details = {"scope": subject.scope, "value": subject.value, "reason": "upgrade", "until": None}
    assert audit(url) == [("ann", "pause", details)]


@each_subject
def test_a_dry_run_changes_nothing(url: str, arguments: list[str], subject: Subject) -> None:
    said = done(invoke("pause", *arguments, "--dry-run", "--for", "2h"))
    assert said.splitlines()[0] == f"{subject} would be paused for 2h: no reason given"
    assert (paused(url), audit(url)) == ([], [])
    done(invoke("pause", *arguments))
    before = paused(url)
    said = done(invoke("resume", *arguments, "--dry-run"))
    assert said.splitlines()[0] == f"the pause of {subject} would end: no reason given"
    assert answer("pause", *arguments, "--dry-run", "--reason", "x")["already_paused"]
    assert paused(url) == before
    assert len(audit(url)) == 1


@pytest.mark.parametrize(
    "arguments,held",
    [
        (["--all"], {"events": 6, "keys": 3, "behind": 0, "in_flight": 1, "exact": True}),
        (["--destination", "mail"], {"events": 1, "keys": 1, "behind": 1, "in_flight": 0, "exact": True}),
        (
            ["--destination", "outbox.events"],
            {"events": 5, "keys": 3, "behind": 0, "in_flight": 1, "exact": True},
        ),
        (["--type", "OrderPaid"], {"events": 3, "keys": 2, "behind": 1, "in_flight": 1, "exact": True}),
        (["--key", "order:1"], {"events": 3, "keys": 1, "behind": 0, "in_flight": 1, "exact": True}),
        (["--key", "order:7"], {"events": 0, "keys": 0, "behind": 0, "in_flight": 0, "exact": True}),
    ],
)
def test_it_says_what_it_holds_now(
    any_postgres: int, url: str, arguments: list[str], held: dict[str, Any]
) -> None:
    add(
        url,
        ("order:1", "OrderPaid", None),
        ("order:1", "OrderPaid", None),
        ("order:1", "OrderPaid", None),
        ("order:1", "OrderShipped", None),
        ("order:2", "OrderShipped", "mail"),
        ("order:2", "OrderPaid", None),
        ("order:3", "OrderShipped", None),
        ("order:3", "OrderPaid", None),
    )
    change(
        url,
        "UPDATE outbox SET status = 'processing', claimed_by = 'w1', claimed_at = now(), attempts = 1,"
        " lease_expires_at = now(), lease_generation = 1 WHERE id = 1",
    )
    change(url, "UPDATE outbox SET available_at = now() + interval '1 h' WHERE id = 6")
    change(url, "UPDATE outbox SET status = 'completed', completed_at = now() WHERE id = 8")
    assert answer("pause", *arguments, "--dry-run")["held"] == held
    assert answer("pause", *arguments)["held"] == held
    assert answer("resume", *arguments)["held"] == held


def test_it_says_what_still_goes_out_and_what_waits_behind(url: str) -> None:
    add(
        url, ("order:1", "OrderPaid", None), ("order:1", "OrderShipped", None), ("order:2", "OrderPaid", None)
    )
    change(
        url,
        "UPDATE outbox SET status = 'processing', claimed_by = 'w1', claimed_at = now(), attempts = 1,"
        " lease_expires_at = now(), lease_generation = 1 WHERE id = 3",
    )
    assert done(invoke("pause", "--type", "OrderPaid")).splitlines()[1:] == [
        "  it holds 1 pending event of 1 key",
        "  behind these, 1 more of their keys wait",
        "  1 in flight still go out",
    ]


def test_a_count_that_reaches_its_bound_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add(url, *[(f"order:{n}", "OrderPaid", None) for n in range(4)])
    with connect(url) as conn:
        table = resolve(conn, TableName.parse("outbox"))
        assert steer.held(conn, table, ALL, "d", rows=3) == steer.Held(4, 4, 0, 0, exact=False)
        assert steer.held(conn, table, ALL, "d", rows=4) == steer.Held(4, 4, 0, 0, exact=True)
    monkeypatch.setattr(steer.held, "__defaults__", (2,))
    assert "  it holds at least 3 pending events of at least 3 keys\n" in done(invoke("pause", "--all"))


def test_a_count_that_takes_too_long_does_not_keep_it_from_pausing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steer, "HELD_SECONDS", 0.05)
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE outbox")
        found = answer("pause", "--all")
        said = done(invoke("resume", "--all"))
    assert (found["held"], found["held_unknown"]) == (
        None,
        "counting took longer than 0.05 s and was given up",
    )
    assert "how many events it held is not known: counting took longer" in said
    assert [action for _, action, _ in audit(url)] == ["pause", "resume"]


def test_events_are_counted_by_where_the_living_relays_send_them(url: str) -> None:
    add(url, ("order:1", "OrderPaid", None))
    change(
        url,
        """INSERT INTO outbox_workers (id, status, metadata) VALUES
           ('w1', 'alive', '{"destination": "shop.{key_type}"}'), ('w0', 'dead', '{"destination": "old"}')""",
    )
    assert answer("pause", "--destination", "shop.order")["held"]["events"] == 1
    assert answer("pause", "--destination", "outbox.events")["held"]["events"] == 0


def test_where_relays_send_to_a_url_that_is_not_known_here_the_count_is_not_made_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(url, ("order:1", "OrderPaid", None))
    change(
        url,
        """INSERT INTO outbox_workers (id, status, metadata)
           VALUES ('w1', 'alive', '{"destination": "https://hooks.example"}')""",
    )
    hook = "https://hooks.example/s3cret"
    found = answer("pause", "--destination", hook)
    assert found["held"] is None
    assert "set the same destination here" in found["held_unknown"]
    assert answer("pause", "--all")["held"]["events"] == 1
    monkeypatch.setenv("RELAY_DESTINATION", hook)
    assert answer("pause", "--destination", hook)["held"]["events"] == 1


def test_pausing_again_replaces_reason_and_end_and_says_so(url: str) -> None:
    done(invoke("pause", "--all", "--reason", "upgrade", "--for", "1h", "--actor", "ann"))
    (first,) = paused(url)
    said = done(invoke("pause", "--all", "--reason", "it takes longer", "--for", "2h", "--actor", "bob"))
    assert "  it was paused already, since " in said
    assert "by ann, until " in said
    assert said.splitlines()[1].endswith(": upgrade")
    (second,) = paused(url)
    assert (second["reason"], second["paused_by"]) == ("it takes longer", "bob")
    assert second["paused_at"] == first["paused_at"]
    assert second["until"] > first["until"] + timedelta(minutes=50)
    found = answer("pause", "--all")
    assert (found["already_paused"], found["reason"], found["until"]) == (True, "it takes longer", None)
    assert [action for _, action, _ in audit(url)] == ["pause"] * 3


def test_a_pause_for_a_while_has_its_end(url: str) -> None:
    before = datetime.now(UTC)
    found = answer("pause", "--key", "order:1", "--for", "1h 30m")
    until = datetime.fromisoformat(found["until"])
    assert timedelta(minutes=89) < until - before < timedelta(minutes=95)
    assert paused(url)[0]["until"] == until
    assert audit(url)[0][2]["until"] == until.isoformat()
    said = done(invoke("pause", "--key", "order:2", "--for", "1d"))
    assert said.startswith("key order:2 is paused until 2")


def test_a_pause_that_has_ended_is_no_pause(url: str) -> None:
    done(invoke("pause", "--all", "--reason", "old", "--for", "1h"))
    change(url, "UPDATE outbox_pauses SET paused_at = now() - interval '9 h', until = now() - interval '8 h'")
    found = answer("pause", "--all", "--dry-run")
    assert (found["already_paused"], found["reason"]) == (False, None)
    found = answer("pause", "--all")
    assert (found["already_paused"], found["reason"]) == (False, "no reason given")
    assert datetime.now(UTC) - paused(url)[0]["paused_at"] < timedelta(hours=1)


def test_pauses_that_ended_days_ago_are_forgotten(url: str) -> None:
    for key, days in (("order:1", 2), ("order:2", 0.5)):
        done(invoke("pause", "--key", key, "--for", "1h"))
        change(
            url,
            f"UPDATE outbox_pauses SET until = now() - {days} * interval '1 day' WHERE value = '{key}'",
        )
    done(invoke("pause", "--key", "order:3"))
    assert [row["value"] for row in paused(url)] == ["order:2", "order:3"]


def test_who_did_it_is_the_user_of_this_machine_unless_said(url: str) -> None:
    done(invoke("pause", "--all"))
    assert audit(url)[0][0] == f"{getpass.getuser()}@{socket.gethostname()}"


def test_what_cannot_be_recorded_is_not_done(url: str) -> None:
    done(invoke("pause", "--key", "order:1"))
    change(url, "ALTER TABLE outbox_audit ADD CHECK (actor <> 'nobody')")
    before = (paused(url), audit(url))
    for command in (["pause", "--all"], ["pause", "--key", "order:1"], ["resume", "--key", "order:1"]):
        assert "outbox_audit" in failure(invoke(*command, "--actor", "nobody"))
    assert (paused(url), audit(url)) == before


# Resuming.


@each_subject
def test_a_resume_ends_that_pause_and_is_recorded(url: str, arguments: list[str], subject: Subject) -> None:
    done(invoke("pause", *arguments, "--reason", "upgrade", "--actor", "ann"))
    (row,) = paused(url)
    said = done(invoke("resume", *arguments, "--actor", "bob"))
    assert said.splitlines()[0] == f"the pause of {subject} has ended: upgrade"
    assert paused(url) == []
    ((actor, action, details),) = audit(url)[1:]
    assert (actor, action) == ("bob", "resume")
    assert details == {
        "scope": subject.scope,
        "value": subject.value,
        "reason": "upgrade",
        "paused_by": "ann",
        "paused_at": row["paused_at"].astimezone(UTC).isoformat(),
        "ended": False,
    }


@each_subject
def test_to_resume_what_is_not_paused_fails_and_changes_nothing(
    url: str, arguments: list[str], subject: Subject
) -> None:
    done(invoke("pause", "--key", "order:2"))
    for more in ([], ["--dry-run"], ["--json"]):
        assert failure(invoke("resume", *arguments, *more)) == (
            f"{subject} is not paused, nothing was changed; 'relay status' lists what is held"
        )
    assert len(paused(url)) == len(audit(url)) == 1


def test_to_resume_what_has_ended_by_itself_is_no_failure(url: str) -> None:
    done(invoke("pause", "--all", "--for", "1h"))
    change(url, "UPDATE outbox_pauses SET until = '2026-07-01T12:00Z'")
    said = done(invoke("resume", "--all"))
    assert said == "the pause of everything had ended by itself, until 2026-07-01 12:00:00Z\n"
    assert paused(url) == []
    assert audit(url)[1][2]["ended"] is True
    assert failure(invoke("resume", "--all")).startswith("everything is not paused")


def test_to_resume_everything_leaves_other_pauses_and_names_them(url: str) -> None:
    for arguments, _ in SUBJECTS:
        done(invoke("pause", *arguments))
    result = invoke("resume", "--all")
    assert "the pause of everything has ended" in done(result)
    assert result.stderr.splitlines() == [
        f"still held by a pause: {subject}, until resumed: no reason given" for _, subject in SUBJECTS[1:]
    ]
    assert len(paused(url)) == 3


@pytest.mark.parametrize(
    "arguments,scope,value",
    [
        (["--all"], "all", ""),
        (["--destination", "orders"], "destination", "orders"),
        (["--host", "Hooks.Example:8443"], "host", "hooks.example:8443"),
        (["--route", "shop/OrderPaid"], "route", "shop/OrderPaid"),
    ],
)
def test_a_breaker_is_closed_by_hand(url: str, arguments: list[str], scope: str, value: str) -> None:
    open_breaker(url, scope, value)
    said = done(invoke("resume", "--breaker", *arguments, "--dry-run"))
    assert said.startswith("the breaker of ")
    assert len(paused(url)) == 1
    found = answer("resume", "--breaker", *arguments, "--actor", "ann")
    assert (found["action"], found["reason"]) == ("close_breaker", "connection refused")
    assert paused(url) == []
    ((actor, action, details),) = audit(url)
    assert (actor, action, details["scope"], details["value"], details["failures"]) == (
        "ann",
        "close_breaker",
        scope,
        value,
        7,
    )


def test_a_breaker_whose_probe_is_due_can_be_closed(url: str) -> None:
    open_breaker(url)
    change(url, "UPDATE outbox_pauses SET until = now() - interval '1 s'")
    assert done(invoke("resume", "--breaker", "--destination", "orders")).splitlines()[0] == (
        "the breaker of destination orders has ended: connection refused"
    )


def test_pauses_and_breakers_of_one_subject_are_told_apart(url: str) -> None:
    open_breaker(url)
    assert failure(invoke("resume", "--destination", "orders")) == (
        "destination orders is not paused, nothing was changed; a breaker holds it: add --breaker"
    )
    done(invoke("pause", "--destination", "orders"))
    assert [row["origin"] for row in paused(url)] == ["breaker", "operator"]
    result = invoke("resume", "--breaker", "--destination", "orders")
    assert "still held by a pause: destination orders" in result.stderr
    assert [row["origin"] for row in paused(url)] == ["operator"]
    assert failure(invoke("resume", "--breaker", "--destination", "orders")) == (
        "no breaker holds destination orders, nothing was changed; it is paused: omit --breaker"
    )


# Wrong usage and hostile values.


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize(
    "arguments",
    [[], ["--all", "--key", "k"], ["--key", "k", "--type", "T"], ["--destination", "d", "--type", "T"]],
)
def test_no_subject_or_two_are_wrong_usage(url: str, command: str, arguments: list[str]) -> None:
    said = failure(invoke(command, *arguments), 2)
    assert said.startswith("name one subject: --all, --destination, --type")
    assert (paused(url), audit(url)) == ([], [])


@pytest.mark.parametrize(
    "duration", ["soon", "", "0", "0s", "-1h", "2 parsecs", "nan", "inf", "1e300", "200000w"]
)
def test_a_duration_that_is_none_is_wrong_usage(url: str, duration: str) -> None:
    assert failure(invoke("pause", "--all", f"--for={duration}"), 2) == (
        f"--for {duration} is no duration: write '90 s', '2h' or '7 days'"
    )
    assert paused(url) == []


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--key", ""], "--key must be 1 to 255 bytes of UTF-8: ''"),
        (["--type", ""], "--type must be 1 to 255 bytes of UTF-8: ''"),
        (["--destination", ""], "--destination must be 1 to 2048 bytes of UTF-8: ''"),
        (["--key", "k" * 256], "--key must be 1 to 255 bytes"),
        (["--key", "a\0b"], "--key contains a NUL character"),
        (["--key", "\udcff"], "--key contains half of a surrogate pair"),
    ],
)
def test_a_value_that_no_event_can_have_is_wrong_usage(
    url: str, command: str, arguments: list[str], said: str
) -> None:
    assert failure(invoke(command, *arguments), 2).startswith(said)
    assert paused(url) == []


HOSTILE = "order:\x1b[2J\n'; DROP TABLE outbox; -- %s {outbox} \u202e"


@pytest.mark.parametrize("flag", ["--key", "--type", "--destination"])
def test_hostile_values_are_kept_as_they_are_and_printed_safely(url: str, flag: str) -> None:
    add(url, (HOSTILE, HOSTILE, HOSTILE))
    words = ["--reason", HOSTILE, "--actor", HOSTILE]
    said = [
        failure(invoke("resume", flag, HOSTILE)),
        done(invoke("pause", flag, HOSTILE, "--dry-run")),
        done(invoke("pause", flag, HOSTILE, *words)),
        done(invoke("pause", flag, HOSTILE, *words)),
        done(invoke("status")),
    ]
    assert [row["value"] for row in paused(url)] == [HOSTILE]
    assert answer("pause", flag, HOSTILE, "--dry-run")["held"]["events"] == 1
    done(invoke("pause", "--all"))
    said.append(invoke("resume", "--all").stderr)
    said.append(done(invoke("resume", flag, HOSTILE, *words[2:])))
    for text in said:
        assert "\\x1b[2J\\n'" in text
        assert not set(text) & {"\x1b", "\u202e"}
    assert [actor for actor, *_ in audit(url) if actor == HOSTILE] == [HOSTILE] * 3


def test_a_reason_that_cannot_be_stored_does_not_keep_it_from_pausing(url: str) -> None:
    done(invoke("pause", "--all", "--reason", "a\0b\udcff", "--actor", "\udcff"))
    assert (paused(url)[0]["reason"], paused(url)[0]["paused_by"]) == ("a\ufffdb?", "?")


def test_the_secrets_of_a_url_show_nowhere(url: str) -> None:
    hook = "https://user:hunter2@hooks.example/s3cret?token=t0ken"
    add(url, ("order:1", "OrderPaid", hook))
    texts = []
    for command in (["pause"], ["pause"], ["resume", "--dry-run"], ["pause", "--json"], ["resume"]):
        result = invoke(*command, "--destination", hook)
        assert "https://hooks.example" in done(result)
        texts += [result.stdout, result.stderr]
    texts.append(failure(invoke("resume", "--destination", hook)))
    texts.append(json.dumps([details for *_, details in audit(url)]))
    for text in texts:
        assert not any(secret in text for secret in ("hunter2", "s3cret", "t0ken"))
    assert len({details["sha256"] for *_, details in audit(url)}) == 1


def test_a_paused_url_can_be_resumed_by_the_name_that_people_are_shown(url: str) -> None:
    done(invoke("pause", "--destination", "https://hooks.example/one"))
    done(invoke("pause", "--destination", "https://hooks.example/two"))
    assert failure(invoke("resume", "--destination", "https://hooks.example")) == (
        "2 pauses are of destination https://hooks.example: write the whole URL of the one you mean"
    )
    done(invoke("resume", "--destination", "https://hooks.example/one"))
    done(invoke("resume", "--destination", "https://hooks.example"))
    assert paused(url) == []


def test_a_key_that_looks_like_a_url_is_shown_in_full(url: str) -> None:
    done(invoke("pause", "--key", "s3://bucket/object"))
    assert "s3://bucket/object" in done(invoke("status"))
    assert audit(url)[0][2]["value"] == "s3://bucket/object"
    assert failure(invoke("resume", "--key", "s3://bucket")).startswith("key s3://bucket is not paused")
