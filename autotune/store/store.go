// Package store keeps every tuning trial in SQLite: one writer (the tuner), many readers, nothing lost when the writer is killed.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite" // registers the driver "sqlite"
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
	deadline := time.Now().Add(busyTimeout)
	for {
		db, err := createOnce(ctx, path)
		if err == nil || !isBusy(err) || ctx.Err() != nil || time.Now().After(deadline) {
			return db, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// busyTimeout is how long a writer waits for another.
const busyTimeout = 20 * time.Second

// isBusy recognises SQLITE_BUSY. The busy timeout does not cover the change to WAL: two processes that create at once would meet it.
func isBusy(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqliteBusy
}

const sqliteBusy = 5

func createOnce(ctx context.Context, path string) (*DB, error) {
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
	if _, err := os.Stat(path); err != nil {
		return nil, missing(path, err)
	}
	pragmas := "_pragma=busy_timeout(20000)&_pragma=query_only(1)"
	if readOnlyMedium(path) { // nobody can write beside us, and SQLite could not make its shared-memory file
		if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
			return nil, fmt.Errorf("trial database %s has a log (%s-wal) that cannot be applied on a read-only medium; copy both files to a writable folder", path, filepath.Base(path))
		}
		pragmas = "immutable=1&mode=ro&" + pragmas
	}
	db, err := open(path, pragmas)
	if err != nil {
		return nil, err
	}
	version, err := db.version(ctx)
	if err == nil && version > len(migrations) {
		err = db.tooNew(version)
	}
	if err == nil && version == 0 {
		err = fmt.Errorf("%s holds no trials: it is empty, just being made, or another program's database; kvloom tune makes a trial database", path)
	}
	if err == nil && version < len(migrations) {
		err = fmt.Errorf("trial database %s has schema %d, this kvloom reads %d; run kvloom db check --migrate on it", path, version, len(migrations))
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func missing(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("trial database %s does not exist; kvloom tune makes it", path)
	}
	return fmt.Errorf("trial database %s: %w", path, err)
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
		_, err := tx.ExecContext(ctx, migrations[v].sql)
		if err == nil && migrations[v].code != nil {
			err = migrations[v].code(ctx, tx)
		}
		if err != nil {
			return db.explain(fmt.Sprintf("migrate to schema %d", v+1), err)
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(migrations))); err != nil {
		return db.explain("migrate", err)
	}
	return db.explain("migrate", tx.Commit())
}
