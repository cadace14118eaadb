-- Names are what many rows have in common; id follows from them.
CREATE TABLE ledger_names (
  id BIGINT NOT NULL PRIMARY KEY,
  seen BIGINT NOT NULL, -- day of the newest row with them, since 1970
  status BIGINT NOT NULL,
  what TEXT NOT NULL,
  tenant TEXT NOT NULL,
  org TEXT NOT NULL,
  key TEXT NOT NULL,
  end_user TEXT NOT NULL,
  asked TEXT NOT NULL,
  alias TEXT NOT NULL,
  served TEXT NOT NULL,
  target TEXT NOT NULL,
  region TEXT NOT NULL,
  account TEXT NOT NULL,
  error TEXT NOT NULL,
  fallback TEXT NOT NULL,
  counted TEXT NOT NULL,
  prices TEXT NOT NULL,
  outcome TEXT NOT NULL
);

-- One row per request, and per attempt that used tokens in vain. Times are in
-- microseconds, money is in picodollars.
CREATE TABLE ledger_rows (
  at BIGINT NOT NULL, -- settled, since 1970
  source BIGINT NOT NULL, -- the process that wrote it
  seq BIGINT NOT NULL, -- its number there
  names BIGINT NOT NULL,
  request TEXT NOT NULL,
  task TEXT, -- NULL: none
  attempt BIGINT NOT NULL,
  input BIGINT NOT NULL,
  cached_read BIGINT NOT NULL,
  cached_write_5m BIGINT NOT NULL,
  cached_write_1h BIGINT NOT NULL,
  output BIGINT NOT NULL,
  reasoning BIGINT NOT NULL,
  cost BIGINT, -- NULL: unknown
  ttft BIGINT NOT NULL,
  total BIGINT NOT NULL,
  audio_in BIGINT NOT NULL DEFAULT 0,
  image_in BIGINT NOT NULL DEFAULT 0,
  audio_out BIGINT NOT NULL DEFAULT 0,
  image_out BIGINT NOT NULL DEFAULT 0,
  images BIGINT NOT NULL DEFAULT 0,
  searches BIGINT NOT NULL DEFAULT 0,
  units BIGINT NOT NULL DEFAULT 0,
  millis BIGINT NOT NULL DEFAULT 0,
  avoided BIGINT, -- NULL: no answer was cached, or unknown
  PRIMARY KEY (at, source, seq)
) /* without rowid */;

CREATE INDEX ledger_tasks ON ledger_rows (task, at) WHERE task IS NOT NULL;

-- How many rows of each process were taken, in the transaction that took them.
CREATE TABLE ledger_sources (
  source BIGINT NOT NULL PRIMARY KEY,
  taken BIGINT NOT NULL,
  seen BIGINT NOT NULL -- day
);

-- What to look at by hand.
CREATE VIEW ledger AS
  SELECT r.at, n.what, n.tenant, n.org, n.key, n.end_user, n.asked, n.alias, n.served, n.target, n.region, n.account,
    n.status, n.error, n.fallback, n.counted, n.outcome, n.prices, r.request, r.task, r.attempt,
    r.input, r.cached_read, r.cached_write_5m, r.cached_write_1h, r.output, r.reasoning,
    r.audio_in, r.image_in, r.audio_out, r.image_out, r.images, r.searches, r.units, r.millis,
    r.cost, r.avoided, r.ttft, r.total, r.source, r.seq
  FROM ledger_rows r JOIN ledger_names n ON n.id = r.names;
