"""What the pages show, as JSON: one function per question, each bounded in rows and time."""

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any, TypeAlias

from relay.destination import shown
from relay.pause import Subject
from relay.ring import shares
from relay.settings import Settings
from relay.store import inspect, listing, overview, steer, waiting, workers_seen
from relay.store.connection import StoreConnection, Table
from relay.web.desk import Desk
from relay.web.params import Wrong, cursor_of, place_of, query_of
from relay.web.shape import in_common

Params: TypeAlias = Mapping[str, str]
Answer: TypeAlias = dict[str, Any]

HELD_ROWS = 10_000
PAUSES_WITH_KEYS = 10
PAYLOAD_CHARACTERS = 200_000


class Reads:
    def __init__(self, settings: Settings, desk: Desk) -> None:
        self._settings = settings
        self._desk = desk

    def workers(self, params: Params) -> Answer:
        rows = self._desk.ask(workers_seen.workers)
        owned = shares([row["id"] for row in rows if row["status"] == "alive"])
        for row in rows:
            row["owned"] = spans(owned.get(row["id"], []))
            row["remark"] = self._remark(row)
        return {"workers": rows, "buckets": 1024}

    def _remark(self, row: dict[str, Any]) -> str | None:
        """What its status does not say yet, because nobody has looked after it."""
        if row["status"] == "dead":
            return "its events come back with the next relay" if row["in_flight"] else None
        if row["connected"] is False:
            return "its process is gone"
        if row["silent_seconds"] > self._settings.stale_seconds:
            return "silent for too long: frozen or cut off"
        return None

    def waiting(self, params: Params) -> Answer:
        after = cursor_of(params.get("after"))

        def look(conn: StoreConnection, table: Table) -> Answer:
            destination = self._settings.destination
            keys, following = waiting.waiting(conn, table, destination, after)
            answer: Answer = {"keys": keys, "next": following}
            if after is None:
                answer["in_flight"] = waiting.in_flight(conn, table)
                held = steer.holding(conn, table)
                answer["held"] = [
                    pause_json(one) | {"keys": waiting.held_keys(conn, table, one.subject, destination)}
                    for one in held[:PAUSES_WITH_KEYS]
                ]
            return answer

        return self._desk.ask(look)

    def events(self, params: Params) -> Answer:
        query = query_of(params)
        page = self._desk.ask(lambda conn, table: listing.page(conn, table, query))
        return asdict(page)

    def count(self, params: Params) -> Answer:
        query = query_of(params)
        found = self._desk.ask(lambda conn, table: listing.count(conn, table, query))
        return {"count": asdict(found) if found else None}

    def event(self, params: Params) -> Answer:
        event_id = params["event_id"]
        if "\0" in event_id:
            raise Wrong("no event can have this id")

        def look(conn: StoreConnection, table: Table) -> Answer:
            row = inspect.show(conn, table, event_id)
            if row is None:
                return {"event": None}
            live = row["completed_at"] is None and not row["archived"]
            lane = waiting.lane_of(conn, table, row["key"], row["position"]) if live else None
            trail, _ = overview.audit(conn, table, event_id=event_id, limit=20)
            return {"event": self._told(row), "lane": lane, "audit": trail}

        return self._desk.ask(look)

    def _told(self, row: dict[str, Any]) -> dict[str, Any]:
        """The event as it may be seen: URLs contain secrets, and payloads may be hidden."""
        row["destination"] = shown(row["destination"]) if row["destination"] else None
        hidden = self._settings.hide_payloads
        if hidden:
            row["payload"] = None
            row["headers"] = dict.fromkeys(row["headers"], None) if row["headers"] else row["headers"]
        cut = not hidden and len(row["payload"]) > PAYLOAD_CHARACTERS
        if cut:
            row["payload"] = row["payload"][:PAYLOAD_CHARACTERS]
        return row | {"payload_hidden": hidden, "payload_cut": cut}

    def dead_letters(self, params: Params) -> Answer:
        groups, complete = self._desk.ask(overview.parked_groups)
        for group in groups:
            errors = [error or "" for error in group.pop("errors")]
            group["error"], group["contains"] = in_common(errors, max(group["variants"], 1))
        return {"groups": groups, "complete": complete, "rows": overview.PARKED_ROWS}

    def pauses(self, params: Params) -> Answer:
        def look(conn: StoreConnection, table: Table) -> Answer:
            held = steer.holding(conn, table)
            destination = self._settings.destination
            return {
                "pauses": [
                    pause_json(one)
                    | {"holds": held_json(steer.held(conn, table, one.subject, destination, HELD_ROWS))}
                    if number < PAUSES_WITH_KEYS
                    else pause_json(one)
                    for number, one in enumerate(held)
                ]
            }

        return self._desk.ask(look)

    def audit(self, params: Params) -> Answer:
        before = place_of(params.get("before"))
        action = params.get("action") or None
        event_id = params.get("event_id") or None

        def look(conn: StoreConnection, table: Table) -> Answer:
            rows, following = overview.audit(conn, table, action=action, event_id=event_id, before=before)
            return {"entries": rows, "next": str(following) if following else None}

        return self._desk.ask(look)


def pause_json(pause: steer.Pause) -> Answer:
    """A pause as people may see it; `reference` names it without telling its value."""
    row = asdict(pause)
    subject = Subject(pause.scope, pause.value)
    return row | {"value": subject.label, "subject": str(subject), "reference": reference(pause)}


def reference(pause: steer.Pause) -> str:
    return sha256(f"{pause.origin}\0{pause.scope}\0{pause.value}".encode()).hexdigest()


def held_json(held: steer.Held | str) -> Answer:
    return {"unknown": held} if isinstance(held, str) else asdict(held)


def spans(buckets: list[int]) -> list[tuple[int, int]]:
    """Buckets as runs of neighbours: first and last."""
    found: list[tuple[int, int]] = []
    for bucket in buckets:
        if found and found[-1][1] == bucket - 1:
            found[-1] = (found[-1][0], bucket)
        else:
            found.append((bucket, bucket))
    return found
