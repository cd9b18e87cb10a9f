-- The outbox and its side tables. See docs/architecture.md for the life of a row.
-- {{name}} places are filled with quoted identifiers that carry the outbox's own name.

CREATE TYPE {status} AS ENUM ('pending', 'processing', 'completed', 'dead_letter', 'failed');

-- Time-ordered ids: native where the server has them (18 and later), built here elsewhere.
DO $do$
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    CREATE FUNCTION {new_event_id}() RETURNS text LANGUAGE sql VOLATILE PARALLEL SAFE
      AS 'SELECT pg_catalog.uuidv7()::text';
  ELSE
    CREATE FUNCTION {new_event_id}() RETURNS text LANGUAGE sql VOLATILE PARALLEL SAFE
      -- A random (v4) uuid whose first 48 bits are replaced by milliseconds and whose version nibble 0100 becomes 0111.
      AS $fn$
        SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                 PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                 FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid::text
      $fn$;
  END IF;
END $do$;

CREATE TABLE {outbox} (
  id               bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
  created_at       timestamptz NOT NULL DEFAULT now(),
  available_at     timestamptz NOT NULL DEFAULT now(),
  -- A hash of the key. The attempts add nothing to it, but settles change them: where an UPDATE changes nothing that
  -- a generated column is made of, PostgreSQL finds that out anew for each row, which takes longer than the hash.
  partition_bucket int NOT NULL
    GENERATED ALWAYS AS ((hashtextextended(partition_key, 0) & 1023)::int + 0 * attempts) STORED,
  status           {status} NOT NULL DEFAULT 'pending',
  attempts         int NOT NULL DEFAULT 0,
  max_attempts     int NOT NULL DEFAULT 5,
  losses           int NOT NULL DEFAULT 0,
  partition_key    text COLLATE "C" NOT NULL,
  event_type       text COLLATE "C" NOT NULL,
  idempotency_key  text COLLATE "C" NOT NULL DEFAULT {new_event_id}(),
  destination      text,
  lease_generation bigint,
  claimed_at       timestamptz,
  lease_expires_at timestamptz,
  completed_at     timestamptz,
  parked_at        timestamptz,
  redriven_at      timestamptz,
  claimed_by       text,
  last_error       text,
  receipt          text,
  headers          jsonb,
  payload          jsonb NOT NULL,

  CONSTRAINT {c_event_id} PRIMARY KEY (idempotency_key),
  CONSTRAINT {c_lengths} CHECK (
    octet_length(partition_key) BETWEEN 1 AND 255
    AND octet_length(event_type) BETWEEN 1 AND 255
    AND octet_length(idempotency_key) BETWEEN 1 AND 255
    AND octet_length(destination) BETWEEN 1 AND 2048),
  CONSTRAINT {c_headers} CHECK (
    jsonb_typeof(headers) = 'object' AND NOT jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string")')),
  CONSTRAINT {c_attempts} CHECK (attempts >= 0 AND max_attempts >= 1 AND losses >= 0),
  -- Times that every client can read: one row with another would keep a relay from claiming at all.
  CONSTRAINT {c_created} CHECK (created_at >= '0001-01-02 00:00+00' AND created_at < '9999-12-31 00:00+00'),
  -- The state machine: which columns each status must and must not carry.
  CONSTRAINT {c_state} CHECK (CASE status
    WHEN 'pending' THEN claimed_by IS NULL AND lease_expires_at IS NULL AND completed_at IS NULL AND parked_at IS NULL
    WHEN 'processing' THEN claimed_by IS NOT NULL AND lease_expires_at IS NOT NULL AND claimed_at IS NOT NULL
      AND lease_generation IS NOT NULL AND attempts >= 1 AND completed_at IS NULL AND parked_at IS NULL
    WHEN 'completed' THEN completed_at IS NOT NULL AND parked_at IS NULL AND lease_expires_at IS NULL
    WHEN 'dead_letter' THEN completed_at IS NOT NULL AND parked_at IS NOT NULL AND lease_expires_at IS NULL
    WHEN 'failed' THEN completed_at IS NULL AND parked_at IS NOT NULL AND lease_expires_at IS NULL
    END)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);

-- The plans do not depend on statistics; those of columns that nobody searches only cost ANALYZE its time.
ALTER TABLE {outbox} ALTER payload SET STATISTICS 0, ALTER headers SET STATISTICS 0,
  ALTER last_error SET STATISTICS 0, ALTER receipt SET STATISTICS 0, ALTER claimed_by SET STATISTICS 0,
  ALTER idempotency_key SET STATISTICS 0, ALTER partition_key SET STATISTICS 10, ALTER id SET STATISTICS 10,
  ALTER created_at SET STATISTICS 10, ALTER available_at SET STATISTICS 10, ALTER claimed_at SET STATISTICS 0,
  ALTER lease_expires_at SET STATISTICS 0, ALTER lease_generation SET STATISTICS 0,
  ALTER completed_at SET STATISTICS 10, ALTER parked_at SET STATISTICS 10, ALTER status SET STATISTICS 10,
  ALTER event_type SET STATISTICS 10, ALTER destination SET STATISTICS 10, ALTER partition_bucket SET STATISTICS 10,
  ALTER attempts SET STATISTICS 0, ALTER max_attempts SET STATISTICS 0, ALTER losses SET STATISTICS 0;

-- No index column or predicate below may name what a mark or a lost lease changes (status, claimed_*, lease_*,
-- attempts, losses): these are HOT updates because of that. The live rows of a key are its lane. Rows that wait or have waited
-- (delayed, retried, failed) sit in an index of their own, so that any number of them costs the others nothing.
CREATE INDEX {i_fresh} ON {outbox} (partition_bucket, partition_key, id)
  WHERE completed_at IS NULL AND available_at <= created_at;
CREATE INDEX {i_later} ON {outbox} (partition_bucket, partition_key, id)
  WHERE completed_at IS NULL AND available_at > created_at;
CREATE INDEX {i_due} ON {outbox} (available_at, id)
  WHERE completed_at IS NULL AND available_at > created_at;
CREATE INDEX {i_parked} ON {outbox} (parked_at) WHERE parked_at IS NOT NULL;
-- Follows the order in which rows complete: for those who look for a time, at next to no cost to the settle.
CREATE INDEX {i_completed} ON {outbox} USING brin (completed_at) WITH (pages_per_range = 32, autosummarize = on)
  WHERE completed_at IS NOT NULL;
-- Finds the newest events among any number, likewise at next to no cost: for those who look.
CREATE INDEX {i_position} ON {outbox} USING brin (id) WITH (pages_per_range = 32, autosummarize = on);

-- One row per claim, which is all that a claim writes: the fence. Settling deletes it; whoever deletes it may
-- change its rows.
CREATE SEQUENCE {generation} AS bigint CACHE 1;
CREATE TABLE {leases} (
  generation bigint PRIMARY KEY,
  claimed_by text NOT NULL,
  claimed_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  size       int NOT NULL CHECK (size > 0),
  -- Its runs, one entry per key: where the reaper finds the rows, and which keys are in flight. Between the first and
  -- the last of a run others may have been committed since: which are its own say the ids.
  buckets    int[] NOT NULL,
  keys       text[] COLLATE "C" NOT NULL,
  firsts     bigint[] NOT NULL,
  lasts      bigint[] NOT NULL,
  ids        bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 2000,
        toast.autovacuum_vacuum_cost_delay = 0);

-- Short-lived rows: compressing them costs more than it saves.
ALTER TABLE {leases} ALTER keys SET STORAGE EXTERNAL, ALTER buckets SET STORAGE EXTERNAL,
  ALTER firsts SET STORAGE EXTERNAL, ALTER lasts SET STORAGE EXTERNAL,
  ALTER ids SET STORAGE EXTERNAL;

CREATE TABLE {archive} (LIKE {outbox});
CREATE INDEX {i_archive_id} ON {archive} (idempotency_key);
CREATE INDEX {i_archive_completed} ON {archive} USING brin (completed_at) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE {workers} (
  id           text PRIMARY KEY,
  status       text NOT NULL CHECK (status IN ('alive', 'draining', 'dead')),
  last_seen_at timestamptz NOT NULL DEFAULT now(),
  started_at   timestamptz NOT NULL DEFAULT now(),
  metadata     jsonb NOT NULL DEFAULT '{{}}',
  -- Until then this worker reads the gauges of the whole outbox. Not in the row that writers look at.
  housekeeper_until timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- What is held: by an operator, or by a breaker until it is worth another try.
CREATE TABLE {pauses} (
  scope      text NOT NULL CHECK (scope IN ('all', 'destination', 'host', 'route', 'event_type', 'key')),
  value      text COLLATE "C" NOT NULL CHECK ((value = '') = (scope = 'all')),
  origin     text NOT NULL CHECK (origin IN ('operator', 'breaker')),
  reason     text NOT NULL,
  paused_by  text NOT NULL,
  paused_at  timestamptz NOT NULL DEFAULT now(),
  until      timestamptz CHECK (until IS NOT NULL OR origin = 'operator'),
  failures   int NOT NULL DEFAULT 1,
  PRIMARY KEY (scope, value, origin)
);

CREATE TABLE {audit} (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at         timestamptz NOT NULL DEFAULT now(),
  actor      text NOT NULL,
  action     text NOT NULL,
  event_id   text,
  details    jsonb NOT NULL DEFAULT '{{}}'
);
CREATE INDEX {i_audit_event} ON {audit} (event_id) WHERE event_id IS NOT NULL;

-- What all relays share. Writers notify only while some relay sleeps: NOTIFY takes a lock at commit that all
-- writers share. On another timeline of the server than this one, generations may come again unless they jump.
CREATE TABLE {wake} (
  only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  asleep_until timestamptz NOT NULL DEFAULT '-infinity',
  timeline     int
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
INSERT INTO {wake} DEFAULT VALUES;

-- SECURITY DEFINER: the writer's role may only INSERT into the outbox.
CREATE FUNCTION {wake_relays}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp
  AS $fn$
BEGIN
  IF EXISTS (SELECT FROM {wake} WHERE asleep_until > clock_timestamp()) THEN
    PERFORM pg_notify('relay_wake_' || TG_RELID, '');
  END IF;
  RETURN NULL;
END $fn$;
CREATE TRIGGER {wake_relays_trigger} AFTER INSERT ON {outbox}
  FOR EACH STATEMENT EXECUTE FUNCTION {wake_relays}();
