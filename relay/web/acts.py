"""What an operator may do from the pages: the same functions as the commands, and the same audit."""

from dataclasses import asdict
from typing import Any, TypeAlias

from relay.errors import RelayError
from relay.settings import Settings
from relay.store import redrive, steer
from relay.store.connection import StoreConnection, Table
from relay.web.access import Session
from relay.web.desk import Desk
from relay.web.jobs import Jobs
from relay.web.params import Wrong, action_of, duration_of, filter_of, reason_of, subject_of
from relay.web.reads import HELD_ROWS, held_json, pause_json, reference

Body: TypeAlias = dict[str, Any]
Answer: TypeAlias = dict[str, Any]

PREVIEW_ROWS = 50_000


class Acts:
    def __init__(self, settings: Settings, desk: Desk) -> None:
        self._settings = settings
        self._desk = desk
        self.jobs = Jobs(settings)

    def preview(self, body: Body) -> Answer:
        """How many events an action would change now."""
        action, which = action_of(body), filter_of(body)
        found = self._desk.ask(lambda conn, table: redrive.preview(conn, table, action, which, PREVIEW_ROWS))
        return {"preview": asdict(found)}

    def redrive(self, body: Body, actor: str) -> Answer:
        action, which, reason = action_of(body), filter_of(body), reason_of(body)
        if action == "skip" and not reason:
            raise Wrong("say why these events are given up: it is kept with them")
        which.statuses(action)  # refuses a status that the action is not for, before anything begins
        return {"job": self.jobs.begin(action, which, actor, reason or "").as_json()}

    def job(self, number: int, *, stop: bool = False) -> Answer:
        job = self.jobs.get(number)
        if job is None:
            raise Wrong("there is no such action: it was begun before the relay was restarted")
        job.stopping = job.stopping or stop
        return {"job": job.as_json()}

    def held(self, body: Body) -> Answer:
        """What a pause of the subject would hold."""
        subject = subject_of(body)
        found = self._desk.ask(
            lambda conn, table: steer.held(conn, table, subject, self._settings.destination, HELD_ROWS)
        )
        return {"subject": str(subject), "holds": held_json(found)}

    def pause(self, body: Body, actor: str) -> Answer:
        subject, reason, seconds = subject_of(body), reason_of(body), duration_of(body)
        made = self._desk.ask(
            lambda conn, table: steer.pause(conn, table, subject, actor=actor, reason=reason, seconds=seconds)
        )
        return {"pause": pause_json(made)}

    def resume(self, body: Body, actor: str) -> Answer:
        """End the pause, or close the breaker, that the reference names."""

        def lift(conn: StoreConnection, table: Table) -> steer.Pause | None:
            for one in steer.holding(conn, table):
                if reference(one) == body.get("reference"):
                    return steer.lift(conn, table, one.subject, origin=one.origin, actor=actor)
            return None

        gone = self._desk.ask(lift)
        if gone is None:
            raise RelayError("it is no longer paused: somebody else has resumed it, or it has ended")
        return {"pause": pause_json(gone)}


def actor_of(session: Session, address: str) -> str:
    """Who did it, for the audit trail: the token is everybody's, the name is what they say."""
    return f"{session.name or 'operator'} by the pages from {address}"
