"""All checks, one after the other. Nothing here raises, and everything has a time limit.

A check that cannot be made is a finding too: the user learns what was not looked at, and why.
"""

from collections.abc import Callable
from contextlib import closing
from functools import partial

import psycopg

from relay.doctor import clock, generations, horizon, indexes, pooler, rights, schema, timing, vacuum
from relay.doctor.backlog import Route, routes
from relay.doctor.finding import Finding
from relay.doctor.patient import Patient, reach
from relay.errors import RelayError
from relay.logs import redact
from relay.plugins import make_publisher
from relay.settings import Settings
from relay.store.connection import StoreConnection

_OF_THE_TABLES: tuple[tuple[str, Callable[[Patient], list[Finding]]], ...] = (
    (schema.FAMILY, schema.check),
    (indexes.FAMILY, indexes.check),
    (vacuum.FAMILY, vacuum.check),
    (horizon.FAMILY, horizon.check),
    (generations.FAMILY, generations.check),
    (rights.FAMILY, rights.check),
    (clock.FAMILY, clock.check),
)


def examine(settings: Settings) -> list[Finding]:
    """What was found, family by family; at least one finding for each that was looked at."""
    found = _safely(timing.FAMILY, lambda: timing.check(settings))
    waiting: list[Route] = []
    try:
        with closing(reach(settings)) as conn:
            found += _safely(pooler.FAMILY, lambda: pooler.check(settings, conn))
            patient = _patient(settings, conn)
            if isinstance(patient, Finding):
                found.append(patient)
            else:
                for family, check in _OF_THE_TABLES:
                    found += _safely(family, partial(check, patient))
                waiting = routes(patient)
    except (RelayError, psycopg.Error) as error:
        why = "what else there is to see in the database was not looked at, and no relay can work"
        found.append(Finding(pooler.FAMILY, "error", _said(error), why, pooler.DIRECT))
    return found + _safely(settings.publisher, lambda: _publisher(settings, waiting))


def _patient(settings: Settings, conn: StoreConnection) -> Patient | Finding:
    try:
        table = schema.find(conn, settings.table_name)
    except psycopg.errors.InsufficientPrivilege as error:
        what = f"{conn.info.user} may not look at the tables: {_said(error)}"
        return Finding(
            schema.FAMILY, "error", what, "no relay can work as this user", rights.grant(settings, conn)
        )
    return table if isinstance(table, Finding) else Patient(settings, conn, table)


def _publisher(settings: Settings, waiting: list[Route]) -> list[Finding]:
    """The broker's checks, by the publisher's name: their modules need its extra."""
    make_publisher(settings).close()  # what is wrong with its settings is said here
    match settings.publisher:
        case "kafka":
            from relay.doctor import kafka  # noqa: PLC0415

            return kafka.check(settings, waiting)
        case "rabbitmq":
            from relay.doctor import rabbitmq  # noqa: PLC0415

            return rabbitmq.check(settings, waiting)
        case "webhook":
            from relay.doctor import webhook  # noqa: PLC0415

            return webhook.check(settings, waiting)
    return [Finding(settings.publisher, "info", "its settings are accepted; there is no more to look at")]


def _safely(family: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except RelayError as error:
        return [Finding(family, "error", redact(str(error)), "no relay starts with these settings")]
    except psycopg.errors.InsufficientPrivilege as error:
        why = "run this as the relay's own user, or as the owner of the tables"
        return [Finding(family, "warning", f"not looked at: {_said(error)}", why)]
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
        why = "somebody holds a lock on the tables, or the database is busy: try again"
        return [Finding(family, "warning", f"not looked at within the time it may take: {_said(error)}", why)]
    except Exception as error:  # noqa: BLE001 - one check that fails must not hide what the others find
        return [Finding(family, "error", f"not looked at: {_said(error)}", "the check itself failed")]


def _said(error: Exception) -> str:
    return redact((str(error).strip().splitlines() or [type(error).__name__])[0])
