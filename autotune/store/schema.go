package store

import (
	"context"
	"database/sql"
)

// migration leads from one user_version to the next: statements, then code where statements cannot do it. Neither is ever changed once
// released; testdata holds a database of every older version.
type migration struct {
	sql  string
	code func(context.Context, *sql.Tx) error
}

// migrations[0] makes version 1 of an empty file.
var migrations = []migration{{sql: version1}, {sql: version2, code: environmentsByClass}}

const version1 = `
CREATE TABLE environment (
  id            TEXT PRIMARY KEY,           -- sha256 of the record
  device        TEXT NOT NULL,              -- device.Info as JSON
  device_uuid   TEXT NOT NULL,
  driver        TEXT NOT NULL,
  nvrtc         TEXT NOT NULL,
  generator     TEXT NOT NULL,              -- version and commit of kvloom
  first_seen    TEXT NOT NULL
) STRICT;
CREATE TABLE run (
  id            INTEGER PRIMARY KEY,
  spec_name     TEXT NOT NULL,
  spec_hash     TEXT NOT NULL,
  environment   TEXT NOT NULL REFERENCES environment(id),
  options       TEXT NOT NULL,              -- JSON
  started       TEXT NOT NULL,
  finished      TEXT NOT NULL DEFAULT '',   -- empty while running, and after a kill
  spent_seconds REAL NOT NULL DEFAULT 0     -- tuning time, across resumes
) STRICT;
CREATE TABLE trial (
  id            TEXT PRIMARY KEY,           -- content id: environment, family, key, workload, form, params, source hash
  run           INTEGER NOT NULL REFERENCES run(id),
  environment   TEXT NOT NULL REFERENCES environment(id),
  spec_name     TEXT NOT NULL,
  family        TEXT NOT NULL,              -- a stem, or dense
  shape_key     TEXT NOT NULL,              -- plan.Candidate.Key
  context       INTEGER NOT NULL,           -- tokens
  batch         INTEGER NOT NULL,
  form          TEXT NOT NULL,
  params        TEXT NOT NULL,              -- JSON, in order
  candidate     TEXT NOT NULL,              -- plan.Candidate as JSON
  source_hash   TEXT NOT NULL,
  cubin_hash    TEXT NOT NULL,
  registers     INTEGER NOT NULL,
  shared_bytes  INTEGER NOT NULL,
  spill_bytes   INTEGER NOT NULL,
  class         TEXT NOT NULL,              -- ok, wrong, compile_error, launch_error, fault, hang, crash, cut
  message       TEXT NOT NULL,
  max_error     REAL NOT NULL,
  bound         REAL NOT NULL,
  l2            TEXT NOT NULL,              -- cold or warm
  median_us     REAL NOT NULL,
  lo_us         REAL NOT NULL,
  hi_us         REAL NOT NULL,
  samples       TEXT NOT NULL,              -- JSON array of microseconds
  is_default    INTEGER NOT NULL,
  started       TEXT NOT NULL,
  seconds       REAL NOT NULL
) STRICT;
CREATE INDEX trial_of ON trial (spec_name, family, shape_key, context, batch);
`

// version2: an environment is a class of devices instead of one board, runs have an identity that survives merging, windows know their
// clocks, and leaders are measured again.
const version2 = `
ALTER TABLE run ADD COLUMN uid TEXT NOT NULL DEFAULT '';          -- the same run in every copy of the database
ALTER TABLE run ADD COLUMN device_uuid TEXT NOT NULL DEFAULT '';  -- the board
ALTER TABLE trial ADD COLUMN conditions TEXT NOT NULL DEFAULT '{}'; -- Conditions as JSON
CREATE TABLE remeasure (
  id            TEXT PRIMARY KEY,           -- content id: contest, round, trial
  contest       TEXT NOT NULL,              -- trials of one contest and round were measured one after the other
  round         INTEGER NOT NULL,
  trial         TEXT NOT NULL REFERENCES trial(id) ON UPDATE CASCADE ON DELETE CASCADE,
  run           INTEGER NOT NULL REFERENCES run(id),
  samples       TEXT NOT NULL,              -- JSON array of microseconds
  conditions    TEXT NOT NULL,
  started       TEXT NOT NULL,
  seconds       REAL NOT NULL
) STRICT;
CREATE INDEX remeasure_of ON remeasure (trial);
`
