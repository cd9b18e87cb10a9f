"""The statements of a claim, two by two. claim.py says what they guarantee together."""

from functools import reduce

LATER_ROWS_PER_CLAIM = 256
# Heads that a claim looks at, at least: those that are held must not crowd out the others.
HEADS_PER_CLAIM = 2 * LATER_ROWS_PER_CLAIM

FRESH = "o.completed_at IS NULL AND o.available_at <= o.created_at"
LATER = "o.completed_at IS NULL AND o.available_at > o.created_at"
# Where a floor is known, looks for fresh events begin there.
ABOVE = " AND o.id >= %(floor)s"
DUE = "(o.status = 'pending' AND o.available_at <= now() - %(min_age)s * interval '1 second')"
# What the payload weighs in memory is what it takes in the table, unless it is packed. To unpack one takes
# time, so a claim unpacks only as many as would fit if they stayed as small as they are.
PACKED = "CASE WHEN pg_column_compression(o.payload) IS NOT NULL THEN o.payload END"
BYTES = """CASE WHEN s.packed IS NULL THEN s.stored
  WHEN s.stored_before < %(bytes)s THEN octet_length(s.packed::text) END"""

# While something is paused, probed or limited: a row that is held is not due, nor is one of another subject.
HELD = """
held AS MATERIALIZED (SELECT * FROM unnest(%(held_scopes)s::text[], %(held_values)s::text[]) h(scope, value)),
"""
DUE_AND_NOT_HELD = """(o.status = 'pending' AND o.available_at <= now() - %(min_age)s * interval '1 second'
  AND NOT EXISTS (SELECT FROM held h WHERE h.value = {SUBJECT_OF_HELD})
  AND (%(only_scope)s::text IS NULL OR %(only_value)s::text = {SUBJECT_OF_ONLY}))"""
# What a pause of some scope is about, for one row.
_SUBJECT = """CASE {SCOPE} WHEN 'all' THEN '' WHEN 'destination' THEN {DESTINATION}
  WHEN 'host' THEN lower(split_part(split_part(split_part(split_part(
    {DESTINATION}, '/', 3), '?', 1), '#', 1), '@', -1))
  WHEN 'route' THEN {DESTINATION} || '/' || o.event_type
  WHEN 'event_type' THEN o.event_type WHEN 'key' THEN o.partition_key END"""
SUBJECT_OF_HELD = _SUBJECT.replace("{SCOPE}", "h.scope")
SUBJECT_OF_ONLY = _SUBJECT.replace("{SCOPE}", "%(only_scope)s::text")

# Which buckets have fresh rows (a loose scan: one probe each, from :start and around), which keys
# have waited long enough, and which of these buckets nobody else is claiming from. Of all buckets only
# the owned ones, or a part of them: the arrays lead from any bucket to the next of them. Rows of others that
# have waited are passed over a window at a time: looking for one's own among many would take as long.
NEXT = "coalesce((%(part)s::int[])[{FROM} + 1], {FROM})"
NEXT_OF_ALL = "coalesce((%(owned)s::int[])[{FROM} + 1], {FROM})"
FRESH_BUCKETS = """ahead(b) AS (
  (SELECT o.partition_bucket FROM {outbox} o WHERE {FRESH} AND o.partition_bucket >= {NEXT_START}
   ORDER BY o.partition_bucket LIMIT 1)
  UNION ALL
  SELECT n.b FROM ahead CROSS JOIN LATERAL (
    SELECT o.partition_bucket AS b FROM {outbox} o WHERE {FRESH} AND o.partition_bucket >= {NEXT_AHEAD}
    ORDER BY o.partition_bucket LIMIT 1) n),
behind(b) AS (
  (SELECT o.partition_bucket FROM {outbox} o
   WHERE {FRESH} AND o.partition_bucket >= {NEXT_FIRST} AND o.partition_bucket < %(start)s
   ORDER BY o.partition_bucket LIMIT 1)
  UNION ALL
  SELECT n.b FROM behind CROSS JOIN LATERAL (
    SELECT o.partition_bucket AS b FROM {outbox} o
    WHERE {FRESH} AND o.partition_bucket >= {NEXT_BEHIND} AND o.partition_bucket < %(start)s
    ORDER BY o.partition_bucket LIMIT 1) n),
fresh AS MATERIALIZED (
  SELECT a.b, row_number() OVER () AS i
  FROM (SELECT b FROM ahead UNION ALL SELECT b FROM behind) a WHERE a.b = {NEXT_FOUND} LIMIT %(buckets)s)"""
MIXED = "EXISTS (SELECT FROM fresh f JOIN {outbox} o ON {LATER} AND o.partition_bucket = f.b)"
IN_FORCE = "p.origin = 'breaker' OR p.until IS NULL OR p.until > now()"
PAUSES = """(
  SELECT jsonb_agg(jsonb_build_array(p.scope, p.value, p.origin = 'breaker', p.until <= now()))
  FROM {pauses} p WHERE {IN_FORCE})"""
LOCK = """
WITH RECURSIVE {FRESH_BUCKETS},
later AS MATERIALIZED (
  SELECT d.*, row_number() OVER () AS i FROM (
    SELECT o.available_at, o.id, o.partition_bucket AS b, o.partition_key AS k FROM {outbox} o
    WHERE {LATER} AND o.available_at <= now() AND (o.available_at, o.id) > (%(later_at)s, %(later_id)s)
    ORDER BY o.available_at, o.id LIMIT %(later_rows)s) d),
locked AS MATERIALIZED (
  SELECT w.b FROM (
    SELECT b FROM fresh
    UNION SELECT b FROM (
      SELECT b FROM later WHERE b = {NEXT_LATER} GROUP BY b ORDER BY min(i) LIMIT %(later_buckets)s) l) w
  WHERE pg_try_advisory_xact_lock(%(namespace)s, w.b))
SELECT (SELECT array_agg(b ORDER BY i) FROM fresh) AS fresh,
       (SELECT array_agg(b) FROM locked) AS locked,
       {MIXED} AS mixed,
       array_agg(b ORDER BY i) AS later_buckets, array_agg(k ORDER BY i) AS later_keys,
       array_agg(available_at ORDER BY i) AS later_at, array_agg(id ORDER BY i) AS later_ids,
       {PAUSES} AS pauses
FROM later
"""
# The same in short, for where nothing waits and nothing is held. If so, it leaves the buckets that it has
# locked to the statement that follows in the same transaction: both can be sent at once.
LOCK_PLAIN = """
WITH RECURSIVE {FRESH_BUCKETS},
plain AS (
  SELECT NOT EXISTS (SELECT FROM {pauses} p WHERE {IN_FORCE}) AND NOT EXISTS (
    SELECT FROM {outbox} o WHERE {LATER} AND o.available_at <= now()) AND NOT {MIXED} AS plain),
locked AS MATERIALIZED (
  SELECT b, i FROM fresh WHERE (SELECT plain FROM plain) AND pg_try_advisory_xact_lock(%(namespace)s, b))
SELECT (SELECT array_agg(b ORDER BY i) FROM fresh) AS fresh, locked.buckets AS locked,
       (SELECT plain FROM plain) AS plain,
       set_config('outbox_relay.locked', coalesce(locked.buckets::text, '{{}}'), true)
FROM (SELECT array_agg(b ORDER BY i) AS buckets FROM locked) locked
"""
# Keys of fresh rows at the end of the table, oldest first, but for those in flight. Needs no index: dead
# entries cost it nothing.
LOCK_TAIL = """
WITH flying AS MATERIALIZED (SELECT {RUN_IN_FLIGHT} FROM {leases} l CROSS JOIN LATERAL {RUNS_OF_LEASE}),
size AS MATERIALIZED (SELECT n AS blocks, greatest(coalesce(%(tail)s::int8, n - %(reach)s), 0) AS first
  FROM (SELECT pg_relation_size({OUTBOX}) / current_setting('block_size')::int) s(n)),
found AS MATERIALIZED (
  SELECT o.partition_bucket AS b, o.partition_key AS k, min(o.id) AS id, max(o.id) AS last,
         count(*) AS n, min(o.ctid) AS tid, o.partition_key IN (SELECT f.k FROM flying f) AS blocked
  FROM {outbox} o WHERE o.ctid >= (SELECT format('(%%s,0)', first)::tid FROM size)
    -- what is pending is not completed; not to say so keeps the planner from the index
    AND o.status = 'pending' AND o.available_at <= o.created_at AND o.partition_bucket = {NEXT_TAIL}
  GROUP BY o.partition_bucket, o.partition_key),
tail AS MATERIALIZED (
  SELECT * FROM found WHERE NOT blocked AND id > %(after)s ORDER BY id LIMIT %(later_rows)s),
locked AS MATERIALIZED (
  SELECT w.b FROM (SELECT b FROM tail GROUP BY b ORDER BY min(id) LIMIT %(later_buckets)s) w
  WHERE pg_try_advisory_xact_lock(%(namespace)s, w.b))
SELECT (SELECT blocks FROM size) AS blocks, (SELECT min(tid)::text FROM found) AS oldest,
       (SELECT coalesce(sum(n), 0)::int8 FROM found WHERE NOT blocked) AS waiting,
       (SELECT array_agg(b) FROM locked) AS locked, {BLOCKED_AT_THE_END} AS blocked,
       array_agg(b ORDER BY id) AS buckets, array_agg(k ORDER BY id) AS keys,
       array_agg(id ORDER BY id) AS ids, {PAUSES} AS pauses
FROM tail
"""

# One head of a lane, found among the fresh rows as `f`: an older row that waited may stand before it.
HEAD = """
SELECT f.k, f.k NOT IN (SELECT busy.k FROM busy)
         AND CASE WHEN l.id IS NULL THEN f.due ELSE l.due END AS free,
       CASE WHEN l.id IS NULL THEN f.attempts ELSE l.attempts END AS attempts,
       CASE WHEN l.id IS NULL THEN f.losses ELSE l.losses END AS losses
FROM {FOUND} f LEFT JOIN LATERAL (
  SELECT o.id, {DUE} AS due, o.attempts, o.losses FROM {outbox} o
  WHERE {LATER} AND o.partition_bucket = {BUCKET} AND o.partition_key = f.k AND (f.id IS NULL OR o.id < f.id)
  ORDER BY o.id LIMIT 1) l ON true"""
# The run behind a head `h`; one row without a tid where there is none.
RUN = """
SELECT h.k, h.free, false AS blocked, h.losses, run.tid, run.id, run.stored, run.packed
FROM ({HEAD}) h LEFT JOIN LATERAL (
  SELECT r.tid, r.id, r.stored, r.packed FROM (
    SELECT e.tid, e.id, e.stored, e.packed,
           bool_and(e.due AND e.losses BETWEEN %(losses_from)s AND %(losses_to)s)
             OVER (ORDER BY e.id ROWS UNBOUNDED PRECEDING) AS due
    FROM (
      (SELECT o.ctid AS tid, o.id, {DUE} AS due, o.losses,
              pg_column_size(o.payload) AS stored, {PACKED} AS packed FROM {outbox} o
       WHERE h.free AND h.losses BETWEEN %(losses_from)s AND %(losses_to)s
         AND {FRESH} AND o.partition_bucket = {BUCKET} AND o.partition_key = h.k
       ORDER BY o.id LIMIT CASE WHEN h.attempts > 0 THEN 1 ELSE %(rows)s END)
      UNION ALL
      (SELECT o.ctid, o.id, {DUE}, o.losses, pg_column_size(o.payload), {PACKED} FROM {outbox} o
       WHERE h.free AND h.losses BETWEEN %(losses_from)s AND %(losses_to)s
         AND {LATER} AND o.partition_bucket = {BUCKET} AND o.partition_key = h.k
       ORDER BY o.id LIMIT CASE WHEN h.attempts > 0 THEN 1 ELSE %(rows)s END)
    ) e) r
  WHERE r.due ORDER BY r.id LIMIT CASE WHEN h.attempts > 0 THEN 1 ELSE %(rows)s END) run ON true"""
# The fresh row with which a key that waited may begin, and those of one bucket's keys by a loose scan.
FOUND_WAITED = """(
  SELECT w.k COLLATE "C" AS k, o.* FROM (SELECT) one LEFT JOIN LATERAL (
    SELECT o.id, {DUE} AS due, o.attempts, o.losses FROM {outbox} o
    WHERE {FRESH} AND o.partition_bucket = w.b AND o.partition_key = w.k ORDER BY o.id LIMIT 1) o ON true)"""
FOUND_BY_KEY = """(
  WITH RECURSIVE step AS (
    (SELECT o.partition_key AS k, o.id, {DUE} AS due, o.attempts, o.losses FROM {outbox} o
     WHERE {FRESH} AND o.partition_bucket = x.b AND o.partition_key > x.after
     ORDER BY o.partition_key, o.id LIMIT 1)
    UNION ALL
    SELECT s.* FROM step CROSS JOIN LATERAL (
      SELECT o.partition_key AS k, o.id, {DUE} AS due, o.attempts, o.losses FROM {outbox} o
      WHERE {FRESH} AND o.partition_bucket = x.b AND o.partition_key > step.k
      ORDER BY o.partition_key, o.id LIMIT 1) s)
  SELECT * FROM step WHERE NOT EXISTS (SELECT FROM waited w WHERE w.k = step.k))"""
# All rows of a plain bucket, lane by lane: those that are not taken have no tid, and only a head is free.
# What is blocked waits for nothing but a sibling in flight, or is in flight itself.
ROWS = """
SELECT e.k, e.n = 1 AND e.due AND e.idle AS free, e.due AND NOT e.idle AS blocked, e.losses,
       CASE WHEN e.idle AND e.run AND (e.n = 1 OR e.tried = 0) THEN e.tid END AS tid, e.id, e.stored, e.packed
FROM (
  SELECT p.*, p.k NOT IN (SELECT busy.k FROM busy) AS idle,
         row_number() OVER lane AS n, first_value(p.attempts) OVER lane AS tried,
         bool_and(p.due AND p.losses BETWEEN %(losses_from)s AND %(losses_to)s) OVER lane AS run
  FROM (
    SELECT o.ctid AS tid, o.partition_key AS k, o.id, {DUE} AS due, o.attempts, o.losses,
           pg_column_size(o.payload) AS stored, {PACKED} AS packed FROM {outbox} o
    WHERE {FRESH} AND o.partition_bucket = x.b AND o.partition_key > x.after
    ORDER BY o.partition_key, o.id LIMIT %(heads)s) p
  WINDOW lane AS (PARTITION BY p.k ORDER BY p.id ROWS UNBOUNDED PRECEDING)) e"""

# Keys in flight in the locked buckets, and their runs.
RUNS_OF_LEASE = "unnest(l.buckets, l.keys, l.firsts, l.lasts) u(b, k, first, last)"
RUN_IN_FLIGHT = 'u.b, u.k COLLATE "C" AS k, u.first, u.last'
BUSY = """busy AS MATERIALIZED (
  SELECT {RUN_IN_FLIGHT} FROM {leases} l CROSS JOIN LATERAL {RUNS_OF_LEASE} WHERE u.b = ANY({LOCKED}))"""
LATER_IN_BUCKET = "EXISTS (SELECT FROM {outbox} o WHERE {LATER} AND o.partition_bucket = x.b)"
# Of the keys in flight that were met, whether any has more than what is in flight.
# Not by a join: that would depend on how few the planner expects.
BLOCKED = """EXISTS (
  SELECT FROM (
    SELECT k, {LOW} AS low, {HIGH} AS high, NULL::int8 AS first, NULL::int8 AS last FROM {SEEN} WHERE blocked
    UNION ALL
    SELECT k, NULL, NULL, first, last FROM {IN_FLIGHT}) s
  GROUP BY k HAVING min(low) < min(first) OR max(high) > max(last))"""


def blocked(seen: str, low: str, high: str, in_flight: str) -> str:
    words = {"SEEN": seen, "LOW": low, "HIGH": high, "IN_FLIGHT": in_flight}
    return reduce(lambda text, word: text.replace(f"{{{word}}}", words[word]), words, BLOCKED)


# The lease of what `taken` has. The claim changes nothing else: the rows of a lease are its own.
LEASED = """written AS (
  INSERT INTO {leases} (
    generation, claimed_by, claimed_at, expires_at, size, buckets, keys, firsts, lasts, ids)
  SELECT max(r.generation), %(worker)s, max(r.at), max(r.at) + %(lease_seconds)s * interval '1 second',
         sum(r.n), array_agg(r.b), array_agg(r.k), array_agg(r.first), array_agg(r.last),
         (SELECT array_agg(id) FROM taken)
  FROM (SELECT b, k, min(id) AS first, max(id) AS last, count(*) AS n,
               max(generation) AS generation, max(at) AS at FROM taken GROUP BY b, k) r
  HAVING count(*) > 0)"""
LEASE = "nextval({GENERATION}) AS generation, clock_timestamp() AS at"
# One row that says what was seen, then the events.
HEADER = """
SELECT NULL::bigint AS position, NULL::text AS key, NULL::text AS event_id, NULL::text AS event_type,
       NULL::text AS destination, NULL::bytea AS payload, {SAID} AS headers,
       NULL::timestamptz AS created_at, NULL::bigint AS generation, NULL::int AS attempt,
       NULL::int AS max_attempts, NULL::jsonb AS marks
UNION ALL
SELECT id, k, event_id, event_type, destination, convert_to(payload::text, 'UTF8'), headers, created_at,
       generation, attempts + 1, max_attempts, {MARKS} FROM taken"""
# In the order in which HEADER has the events: both read what `taken` reads, from its beginning to its end.
PLACES = """(
  SELECT jsonb_build_object('tids', array_agg(tid)::text, 'ids', array_agg(id)::text) FROM taken)"""
REACHED = """'buckets', (SELECT coalesce(jsonb_agg(jsonb_build_array(c.b, c.k) ORDER BY c.i), '[]') FROM (
  SELECT i, b, max(k) AS k FROM cut WHERE i > 0 GROUP BY i, b) c)"""
EVENT = """o.idempotency_key AS event_id, o.event_type, {DESTINATION} AS destination, o.payload, o.headers,
  o.created_at, o.attempts, o.max_attempts, o.redriven_at"""

# Candidates are keys: first those whose wait is over, longest first, then those of each bucket behind its
# cursor. The head decides; a run is cut at the first row that is not due or of another class of losses, at
# the rows and at the bytes of one claim. A head that was tried before goes alone. A bucket in which nothing
# waits and nothing is held is plain: its lanes are read as they lie in the index, which costs a key nothing.
# In the others each key costs a probe, however long its lane is. What is held counts among what a claim
# looks at, so that every claim gets on.
CLAIM = """
WITH {HELD} {BUSY},
waited AS MATERIALIZED (
  SELECT u.b, u.k FROM unnest(%(later_buckets)s::int[], %(later_keys)s::text[]) WITH ORDINALITY u(b, k, i)
  WHERE u.b = ANY({LOCKED}) GROUP BY u.b, u.k ORDER BY min(u.i)),
fresh AS MATERIALIZED (
  SELECT x.b, x.after, x.i::int AS i, {NONE_HELD} AND NOT {LATER_IN_BUCKET} AS plain
  FROM unnest(%(fresh)s::int[], %(cursors)s::text[]) WITH ORDINALITY x(b, after, i)),
chosen AS (
  SELECT * FROM (
    SELECT 0 AS i, w.b, run.* FROM waited w CROSS JOIN LATERAL ({RUN_OF_WAITED}) run
    UNION ALL
    SELECT x.i, x.b, run.* FROM fresh x CROSS JOIN LATERAL (
      SELECT * FROM ({RUN_OF_KEY}) by_key WHERE NOT x.plain
      UNION ALL
      SELECT * FROM ({ROWS}) by_row WHERE x.plain) run) c LIMIT %(heads)s),
stored AS (
  SELECT c.*, count(c.tid) OVER so_far AS taken,
         coalesce(sum(c.stored) OVER so_far - coalesce(c.stored, 0), 0) AS stored_before
  FROM chosen c WINDOW so_far AS (ROWS UNBOUNDED PRECEDING)),
weighed AS MATERIALIZED (
  SELECT w.i, w.b, w.k, w.free, w.blocked, w.losses, w.tid, w.id, w.taken, w.stored_before,
         coalesce(sum(w.bytes) OVER (ROWS UNBOUNDED PRECEDING) - coalesce(w.bytes, 0), 0) AS before
  FROM (SELECT s.*, {BYTES} AS bytes FROM stored s) w),
cut AS MATERIALIZED (
  SELECT * FROM weighed
  WHERE before < %(bytes)s AND stored_before < %(bytes)s AND taken <= %(rows)s),
lease AS MATERIALIZED (SELECT {LEASE} WHERE EXISTS (SELECT FROM cut WHERE tid IS NOT NULL)),
taken AS MATERIALIZED (
  SELECT o.ctid AS tid, o.id, o.partition_bucket AS b, o.partition_key AS k, {EVENT}, lease.*
  -- no test of completed_at here: it would let the planner leave the TID scan
  FROM lease CROSS JOIN {outbox} o WHERE o.ctid = ANY(ARRAY(SELECT tid FROM cut WHERE tid IS NOT NULL))
  ORDER BY o.id),
{LEASED}
{HEADER}
"""
SAID = """(
  SELECT jsonb_build_object(
    'seen', (SELECT count(*) FROM weighed), 'cut', (SELECT count(*) FROM weighed) > count(*),
    'blocked', {BLOCKED_IN_CUT},
    'lost_once', count(*) FILTER (WHERE free AND tid IS NULL AND losses = 1),
    'lost_more', count(*) FILTER (WHERE free AND tid IS NULL AND losses > 1), {REACHED}) || {PLACES}
  FROM cut)"""

# The same where nothing was seen to wait, in a fraction of the time. It takes its buckets from what
# LOCK_PLAIN has left in the transaction. In a plain bucket all that is not in flight can be taken as it lies,
# if it is easy: due, neither tried nor lost before, and not packed. If anything is not, nothing is taken
# and the header says so.
LEFT_LOCKED = "(SELECT current_setting('outbox_relay.locked'))::int[]"
CLAIM_PLAIN = """
WITH {BUSY},
fresh AS MATERIALIZED (
  SELECT u.b, u.i::int AS i, coalesce(
           (%(cursor_keys)s::text[])[array_position(%(cursor_buckets)s::int[], u.b)], '') AS after
  FROM unnest({LOCKED}) WITH ORDINALITY u(b, i)),
looked AS (
  SELECT x.i, x.b, o.k IN (SELECT busy.k FROM busy) AS blocked, o.*
  FROM fresh x CROSS JOIN LATERAL (
    SELECT o.ctid AS tid, o.id, pg_column_size(o.payload) AS stored,
           o.status = 'pending' AND o.available_at <= now() AND o.attempts = 0 AND o.losses = 0
             AND pg_column_compression(o.payload) IS NULL AS easy,
           o.partition_key AS k, {EVENT}
    FROM {outbox} o WHERE {FRESH} AND o.partition_bucket = x.b AND o.partition_key > x.after
      AND o.id < %(horizon)s
    ORDER BY o.partition_key, o.id LIMIT %(heads)s) o LIMIT %(heads)s),
-- What is asked most often comes first: a row is unpacked up to what is asked of it.
weighed AS MATERIALIZED (
  SELECT count(*) FILTER (WHERE NOT blocked) OVER so_far <= %(rows)s
           AND sum({WEIGHT}) OVER so_far - {WEIGHT} < %(bytes)s AS fits, l.*
  FROM looked l WINDOW so_far AS (ROWS UNBOUNDED PRECEDING)),
cut AS NOT MATERIALIZED (SELECT * FROM weighed WHERE fits),
told AS MATERIALIZED (
  SELECT count(*) AS seen, count(*) > count(*) FILTER (WHERE fits) AS cut, bool_or(blocked) AS met,
         NOT coalesce(bool_or(fits AND NOT (easy OR blocked)), false)
           AND NOT EXISTS (SELECT FROM fresh x WHERE {LATER_IN_BUCKET}) AS easy,
         bool_or(fits AND NOT blocked) AS any FROM weighed),
lease AS MATERIALIZED (SELECT {LEASE} FROM told WHERE easy AND told.any),
taken AS NOT MATERIALIZED (SELECT cut.*, lease.* FROM cut CROSS JOIN lease WHERE NOT blocked),
{LEASED}
{HEADER}
"""
SAID_IN_PLAIN = """(
  SELECT jsonb_build_object(
    'easy', easy, 'seen', seen, 'cut', told.cut, 'blocked', met AND {BLOCKED_IN_CUT},
    'lost_once', 0, 'lost_more', 0, {REACHED}) || {PLACES}
  FROM told)"""

# An event that overtakes nobody has none.
MARKS = "CASE WHEN redriven_at IS NOT NULL THEN jsonb_build_object('redriven_at', redriven_at) END"

# The texts that the two statements share, by the names they use for them.
FRAGMENTS = {
    "RUN_OF_WAITED": RUN.replace("{HEAD}", HEAD).replace("{FOUND}", FOUND_WAITED).replace("{BUCKET}", "w.b"),
    "RUN_OF_KEY": RUN.replace("{HEAD}", HEAD).replace("{FOUND}", FOUND_BY_KEY).replace("{BUCKET}", "x.b"),
    "ROWS": ROWS,
    "FRESH": f"{FRESH}{{ABOVE}}",
    "LATER": LATER,
    "FRESH_BUCKETS": FRESH_BUCKETS,
    "MIXED": MIXED,
    "PAUSES": PAUSES,
    "IN_FORCE": IN_FORCE,
    "PACKED": PACKED,
    "MARKS": MARKS,
    "BUSY": BUSY,
    "RUNS_OF_LEASE": RUNS_OF_LEASE,
    "RUN_IN_FLIGHT": RUN_IN_FLIGHT,
    "LATER_IN_BUCKET": LATER_IN_BUCKET,
    "WEIGHT": "CASE WHEN blocked THEN 0 ELSE stored END",
    "BLOCKED_IN_CUT": blocked("cut", "id", "id", "busy"),
    "BLOCKED_AT_THE_END": blocked("found", "id", "last", "flying"),
    "LEASED": LEASED,
    "LEASE": LEASE,
    "HEADER": HEADER,
    "PLACES": PLACES,
    "REACHED": REACHED,
    "EVENT": EVENT,
    "BYTES": BYTES,
    "SUBJECT_OF_HELD": SUBJECT_OF_HELD,
    "SUBJECT_OF_ONLY": SUBJECT_OF_ONLY,
    "NEXT_START": NEXT.replace("{FROM}", "%(start)s::int"),
    "NEXT_FIRST": NEXT.replace("{FROM}", "0"),
    "NEXT_AHEAD": NEXT.replace("{FROM}", "(ahead.b + 1)"),
    "NEXT_BEHIND": NEXT.replace("{FROM}", "(behind.b + 1)"),
    "NEXT_FOUND": NEXT.replace("{FROM}", "a.b"),
    "NEXT_LATER": NEXT_OF_ALL.replace("{FROM}", "b"),
    "NEXT_TAIL": NEXT_OF_ALL.replace("{FROM}", "o.partition_bucket"),
}
