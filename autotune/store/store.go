// Package store keeps every tuning trial in SQLite: one writer (the tuner), many readers, nothing lost when the writer is killed.
package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // registers the driver "sqlite"
)

// DB is an open trial database.
type DB struct {
	sql  *sql.DB
	path string
}

// Create opens a database for writing, makes it where there is none, and migrates it forward. A database that a newer kvloom wrote
// is refused by its version.
func Create(ctx context.Context, path string) (*DB, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("trial database %s: %w", path, err)
	}
	// busy_timeout comes before journal_mode, so that a second opener waits instead of failing.
	db, err := open(path, "_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.sql.SetMaxOpenConns(1) // one writer; SQLite serialises the rest
	if err := db.migrate(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Open opens an existing database for reading.
func Open(ctx context.Context, path string) (*DB, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("trial database %s does not exist; kvloom tune makes it", path)
	} else if err != nil {
		return nil, fmt.Errorf("trial database %s: %w", path, err)
	}
	db, err := open(path, "_pragma=busy_timeout(20000)&_pragma=query_only(1)")
	if err != nil {
		return nil, err
	}
	version, err := db.version(ctx)
	if err == nil && version > len(migrations) {
		err = db.tooNew(version)
	}
	if err == nil && version < len(migrations) {
		err = fmt.Errorf("trial database %s has schema %d, this kvloom reads %d; run kvloom tune once on it to migrate", path, version, len(migrations))
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func open(path, pragmas string) (*DB, error) {
	escaped := (&url.URL{Path: path}).EscapedPath()
	s, err := sql.Open("sqlite", "file:"+escaped+"?"+pragmas)
	if err != nil {
		return nil, fmt.Errorf("trial database %s: %w", path, err)
	}
	return &DB{sql: s, path: path}, nil
}

// Close closes the database.
func (db *DB) Close() error { return db.sql.Close() }

// Path is the file.
func (db *DB) Path() string { return db.path }

func (db *DB) version(ctx context.Context) (int, error) {
	var v int
	if err := db.sql.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v); err != nil {
		return 0, db.explain("read", err)
	}
	return v, nil
}

func (db *DB) tooNew(version int) error {
	return fmt.Errorf("trial database %s has schema %d, written by a newer kvloom; this one knows %d: update kvloom", db.path, version, len(migrations))
}

func (db *DB) migrate(ctx context.Context) error {
	tx, err := db.sql.BeginTx(ctx, nil) // immediate: two processes that create at once wait for each other here
	if err != nil {
		return db.explain("open", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	var version int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return db.explain("read", err)
	}
	if version > len(migrations) {
		return db.tooNew(version)
	}
	for v := version; v < len(migrations); v++ {
		if _, err := tx.ExecContext(ctx, migrations[v]); err != nil {
			return db.explain(fmt.Sprintf("migrate to schema %d", v+1), err)
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(migrations))); err != nil {
		return db.explain("migrate", err)
	}
	return db.explain("migrate", tx.Commit())
}

// explain says what was being done to which file, and the remedy where there is one.
func (db *DB) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	text, remedy := err.Error(), ""
	switch {
	case strings.Contains(text, "full"):
		remedy = "; free space on its disk and run again: every finished trial is kept"
	case strings.Contains(text, "readonly") || strings.Contains(text, "unable to open"):
		remedy = "; the folder must be writable, name another with --db"
	case strings.Contains(text, "malformed") || strings.Contains(text, "not a database"):
		remedy = "; the file is damaged: move it away, or restore a copy"
	case strings.Contains(text, "locked") || strings.Contains(text, "busy"):
		remedy = "; another process has held it for 20 s: let it finish"
	}
	return fmt.Errorf("trial database %s: %s: %w%s", db.path, doing, err, remedy)
}

// Environment is what a measurement depends on besides the kernel.
type Environment struct {
	Device     json.RawMessage `json:"device"` // device.Info
	DeviceUUID string          `json:"device_uuid"`
	Driver     string          `json:"driver"`
	NVRTC      string          `json:"nvrtc"`
	Generator  string          `json:"generator"`
}

// ID is the environment's content id. The generator is left out: a trial is tied to its source by the source hash.
func (e Environment) ID() string {
	return contentID(string(e.Device), e.DeviceUUID, e.Driver, e.NVRTC)
}

func contentID(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// BeginRun records the start of a run and returns its number.
func (db *DB) BeginRun(ctx context.Context, specName, specHash string, env Environment, options any) (int64, error) {
	text, err := json.Marshal(options)
	if err != nil {
		return 0, fmt.Errorf("BUG: run options: %w", err)
	}
	now := time.Now().UTC().Format(time.RFC3339)
	if _, err := db.sql.ExecContext(ctx, `INSERT INTO environment VALUES (?,?,?,?,?,?,?) ON CONFLICT DO NOTHING`,
		env.ID(), string(env.Device), env.DeviceUUID, env.Driver, env.NVRTC, env.Generator, now); err != nil {
		return 0, db.explain("record the environment", err)
	}
	res, err := db.sql.ExecContext(ctx, `INSERT INTO run (spec_name, spec_hash, environment, options, started) VALUES (?,?,?,?,?)`,
		specName, specHash, env.ID(), string(text), now)
	if err != nil {
		return 0, db.explain("record the run", err)
	}
	return res.LastInsertId()
}

// EndRun records that a run came to its end, or was stopped on request.
func (db *DB) EndRun(ctx context.Context, run int64) error {
	_, err := db.sql.ExecContext(ctx, `UPDATE run SET finished = ? WHERE id = ?`, time.Now().UTC().Format(time.RFC3339), run)
	return db.explain("end the run", err)
}
