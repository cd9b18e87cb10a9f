"""What the operator's pages say of an error."""

import psycopg

from relay.errors import RelayError
from relay.web.desk import sentence


def test_a_missing_right_comes_with_what_helps() -> None:
    error = psycopg.errors.InsufficientPrivilege("permission denied for table outbox_audit\nSTATEMENT: …")
    assert sentence(error).startswith("permission denied for table outbox_audit: ")
    assert "relay sql --roles" in sentence(error)


def test_who_is_held_up_by_others_is_told_to_come_back() -> None:
    for error in (
        psycopg.errors.LockNotAvailable("canceling statement due to lock timeout\nLINE 1: …"),
        psycopg.errors.DeadlockDetected("deadlock detected\nDETAIL: …"),
    ):
        assert sentence(error).endswith(": try again")


def test_of_other_errors_the_first_line_is_said() -> None:
    assert sentence(RelayError("nothing is there\nand more")) == "nothing is there"
    assert sentence(RelayError()) == "RelayError"
