"""The eyewitness inside the database: a trigger that writes down every change of a row's status.

What it writes is part of the transaction that it watches: what a crash forgets, it forgets too.
"""

from typing import Any

from psycopg import Connection

from tests.faults.checker import Change, Row
from tests.faults.child import POISON

INSTALL = """
CREATE TABLE fault_audit (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id text, key text, position bigint, before text, after text, generation bigint, worker text,
  session text, settles bigint, in_time boolean, error text);

CREATE FUNCTION fault_audit() RETURNS trigger LANGUAGE plpgsql AS $fn$
DECLARE
  now_or_then outbox := CASE WHEN OLD.status = 'processing' OR TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  INSERT INTO fault_audit
    (event_id, key, position, before, after, generation, worker, session, settles, in_time, error)
  VALUES (OLD.idempotency_key, OLD.partition_key, OLD.id, OLD.status, coalesce(NEW.status::text, 'deleted'),
    now_or_then.lease_generation, now_or_then.claimed_by, current_setting('application_name'),
    nullif(current_setting('faults.generation', true), '')::bigint,
    statement_timestamp() < now_or_then.lease_expires_at, NEW.last_error);
  RETURN NULL;
END $fn$;

CREATE TRIGGER fault_audit_update AFTER UPDATE ON outbox FOR EACH ROW
  WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.lease_generation IS DISTINCT FROM NEW.lease_generation)
  EXECUTE FUNCTION fault_audit();
CREATE TRIGGER fault_audit_delete AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION fault_audit();
"""


def install(conn: Connection[Any]) -> None:
    conn.execute(INSTALL)


CHANGES = """
SELECT event_id, key, position, before, after, coalesce(generation, 0), coalesce(worker, ''),
       split_part(session, ' ', 2), split_part(session, ' ', 3), settles, coalesce(in_time, false), error
FROM fault_audit ORDER BY seq
"""


def changes(conn: Connection[Any]) -> list[Change]:
    return [Change(*row) for row in conn.execute(CHANGES)]


ROWS = "SELECT idempotency_key, partition_key, id, status::text, event_type = %s FROM outbox ORDER BY id"


def rows(conn: Connection[Any]) -> list[Row]:
    return [Row(*row) for row in conn.execute(ROWS, [POISON])]
