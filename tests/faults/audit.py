"""The eyewitness inside the database: triggers that write down every lease and every change of a row.

What they write is part of the transaction that they watch: what a crash forgets, they forget too.
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
-- Which lease each event is under; a second one has no room here.
CREATE TABLE fault_leased (
  position bigint PRIMARY KEY, generation bigint, worker text, expires_at timestamptz);
CREATE INDEX fault_position ON outbox (id);

CREATE FUNCTION fault_lease() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
  INSERT INTO fault_leased SELECT id, NEW.generation, NEW.claimed_by, NEW.expires_at FROM unnest(NEW.ids) id;
  INSERT INTO fault_audit (event_id, key, position, before, after, generation, worker, session)
  SELECT o.idempotency_key, o.partition_key, o.id, o.status, 'processing', NEW.generation, NEW.claimed_by,
         current_setting('application_name')
  FROM unnest(NEW.ids) u(id) JOIN outbox o ON o.id = u.id;
  RETURN NULL;
END $fn$;

CREATE FUNCTION fault_audit() RETURNS trigger LANGUAGE plpgsql AS $fn$
DECLARE
  held fault_leased;
BEGIN
  SELECT * INTO held FROM fault_leased WHERE position = OLD.id;
  INSERT INTO fault_audit
    (event_id, key, position, before, after, generation, worker, session, settles, in_time, error)
  VALUES (OLD.idempotency_key, OLD.partition_key, OLD.id,
    CASE WHEN held.position IS NULL THEN OLD.status::text ELSE 'processing' END,
    CASE NEW.status WHEN 'processing' THEN 'marked' ELSE coalesce(NEW.status::text, 'deleted') END,
    held.generation, held.worker, current_setting('application_name'),
    nullif(current_setting('faults.generation', true), '')::bigint,
    statement_timestamp() < held.expires_at, NEW.last_error);
  DELETE FROM fault_leased WHERE position = OLD.id AND NEW.status IS DISTINCT FROM 'processing';
  RETURN NULL;
END $fn$;

CREATE TRIGGER fault_lease AFTER INSERT ON outbox_leases FOR EACH ROW EXECUTE FUNCTION fault_lease();
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
