-- What each consumer has applied: the primary key is the promise.
CREATE TABLE {inbox} (
  consumer text COLLATE "C" NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
  event_id text COLLATE "C" NOT NULL CHECK (octet_length(event_id) BETWEEN 1 AND 255),
  seen_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, event_id)
);
CREATE INDEX {i_seen} ON {inbox} USING brin (seen_at) WITH (pages_per_range = 32, autosummarize = on);
