-- What each consumer has applied: the primary key is the promise.
CREATE TABLE {inbox} (
  consumer text COLLATE "C" NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
  event_id text COLLATE "C" NOT NULL CHECK (octet_length(event_id) BETWEEN 1 AND 255),
  seen_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, event_id)
);

-- The same for events that a replay publishes again: applied once per replay, seen before or not.
CREATE TABLE {replays} (
  consumer  text COLLATE "C" NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
  event_id  text COLLATE "C" NOT NULL CHECK (octet_length(event_id) BETWEEN 1 AND 255),
  replay_id text COLLATE "C" NOT NULL CHECK (octet_length(replay_id) BETWEEN 1 AND 255),
  seen_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, replay_id, event_id)
);

-- The highest lease generation of each key, for consumers that fence.
CREATE TABLE {fences} (
  consumer   text COLLATE "C" NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
  key        text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
  generation bigint NOT NULL,
  seen_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, key)
) WITH (fillfactor = 70);

-- Messages that a consumer has parked. An event has one row at most, here and per replay.
CREATE TABLE {dead_letters} (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer       text COLLATE "C" NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
  reason         text NOT NULL CHECK (reason IN ('failed', 'stale', 'malformed')),
  event_id       text COLLATE "C",                    -- null: the message has none
  replay_id      text COLLATE "C" NOT NULL DEFAULT '',
  key            text COLLATE "C",
  event_type     text,
  generation     bigint,
  source         text NOT NULL,                       -- where it came from: orders[3]@1207
  headers        jsonb NOT NULL DEFAULT '{{}}',         -- all of the message's, as it carried them
  payload        bytea,                               -- its value as it came; null: it was not given
  error          text NOT NULL,
  attempts       int NOT NULL,
  parked_at      timestamptz NOT NULL DEFAULT now(),
  retry_asked_at timestamptz                          -- set: the consumer is to try it again
);
CREATE UNIQUE INDEX {i_dead_event} ON {dead_letters} (consumer, event_id, replay_id);
CREATE INDEX {i_dead_asked} ON {dead_letters} (consumer, id) WHERE retry_asked_at IS NOT NULL;
