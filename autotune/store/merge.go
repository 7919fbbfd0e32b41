package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Merged counts what a merge did.
type Merged struct {
	Trials  int `json:"trials"`  // new here
	Known   int `json:"known"`   // here already: the one measured first stays
	Windows int `json:"windows"` // of leaders measured again, new here
	Runs    int `json:"runs"`    // new here
}

// Merge adds what another database holds, in one transaction. Rows are told apart by content id, so merging twice changes nothing and
// the order of merging does not matter. The other file is read only; where its schema is older, a copy is migrated.
func (db *DB) Merge(ctx context.Context, path string) (m Merged, err error) {
	if same, err := sameFile(db.path, path); err != nil || same {
		return m, errors.Join(err, ifTrue(same, fmt.Errorf("trial database %s cannot be merged into itself", path)))
	}
	from, done, err := current(ctx, path)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, done()) }()
	tx, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		return m, db.explain("merge", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if _, err := copyRows(ctx, tx, from, "environment", "ON CONFLICT DO NOTHING", nil); err != nil {
		return m, db.explain("merge environments of "+path, err)
	}
	runs, err := mergeRuns(ctx, tx, from, &m)
	if err != nil {
		return m, db.explain("merge runs of "+path, err)
	}
	count := func(table string) (n int, err error) {
		return n, tx.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n)
	}
	before, err := count("trial")
	if err != nil {
		return m, db.explain("merge", err)
	}
	seen, err := copyRows(ctx, tx, from, "trial", "ON CONFLICT (id) DO UPDATE SET "+earliest+" WHERE excluded.started < trial.started", runs)
	if err != nil {
		return m, db.explain("merge trials of "+path, err)
	}
	after, err := count("trial")
	if err != nil {
		return m, db.explain("merge", err)
	}
	m.Trials, m.Known = after-before, seen-(after-before)
	if before, err = count("remeasure"); err == nil {
		_, err = copyRows(ctx, tx, from, "remeasure", "ON CONFLICT DO NOTHING", runs)
	}
	if err != nil {
		return m, db.explain("merge windows of "+path, err)
	}
	if after, err = count("remeasure"); err != nil {
		return m, db.explain("merge", err)
	}
	m.Windows = after - before
	return m, db.explain("merge", tx.Commit())
}

func ifTrue(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// earliest takes over what was measured; what makes the id is equal anyway.
var earliest = func() string {
	var sets []string
	for _, c := range strings.Fields(`run spec_name candidate cubin_hash registers shared_bytes spill_bytes class message max_error bound
		median_us lo_us hi_us samples is_default started seconds conditions`) {
		sets = append(sets, c+" = excluded."+c)
	}
	return strings.Join(sets, ", ")
}()

// copyRows copies a table, run numbers translated where they are given, and returns how many rows it read.
func copyRows(ctx context.Context, tx *sql.Tx, from *DB, table, conflict string, runs map[int64]int64) (n int, err error) {
	rows, err := from.sql.QueryContext(ctx, "SELECT * FROM "+table+" ORDER BY rowid")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	insert, err := tx.PrepareContext(ctx, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) %s", table, strings.Join(columns, ","),
		strings.TrimSuffix(strings.Repeat("?,", len(columns)), ","), conflict))
	if err != nil {
		return 0, err
	}
	defer insert.Close()
	for ; rows.Next(); n++ {
		values, targets := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return n, err
		}
		for i, c := range columns {
			if old, isNumber := values[i].(int64); c == "run" && isNumber {
				values[i] = runs[old]
			}
		}
		if _, err := insert.ExecContext(ctx, values...); err != nil {
			return n, err
		}
	}
	return n, rows.Err()
}

// mergeRuns adds the runs that are not here, takes the longer time of those that are, and maps their numbers.
func mergeRuns(ctx context.Context, tx *sql.Tx, from *DB, m *Merged) (map[int64]int64, error) {
	type run struct {
		id                                                              int64
		uid, spec, hash, environment, options, started, finished, board string
		spent                                                           float64
	}
	runs, err := query(ctx, from.sql, `SELECT id, uid, spec_name, spec_hash, environment, options, started, finished, device_uuid, spent_seconds FROM run ORDER BY id`,
		func(rows *sql.Rows) (r run, err error) {
			return r, rows.Scan(&r.id, &r.uid, &r.spec, &r.hash, &r.environment, &r.options, &r.started, &r.finished, &r.board, &r.spent)
		})
	if err != nil {
		return nil, err
	}
	numbers := map[int64]int64{}
	for _, r := range runs {
		var here int64
		err := tx.QueryRowContext(ctx, "SELECT id FROM run WHERE uid = ?", r.uid).Scan(&here)
		switch {
		case err == nil:
			_, err = tx.ExecContext(ctx, "UPDATE run SET spent_seconds = max(spent_seconds, ?), finished = max(finished, ?) WHERE id = ?", r.spent, r.finished, here)
		case errors.Is(err, sql.ErrNoRows):
			var res sql.Result
			res, err = tx.ExecContext(ctx, `INSERT INTO run (uid, spec_name, spec_hash, environment, options, started, finished, device_uuid, spent_seconds)
				VALUES (?,?,?,?,?,?,?,?,?)`, r.uid, r.spec, r.hash, r.environment, r.options, r.started, r.finished, r.board, r.spent)
			if err == nil {
				m.Runs++
				here, err = res.LastInsertId()
			}
		}
		if err != nil {
			return nil, err
		}
		numbers[r.id] = here
	}
	return numbers, nil
}

// current opens a database for reading; one of an older schema is copied into a temporary file and migrated there.
func current(ctx context.Context, path string) (*DB, func() error, error) {
	version, err := Version(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	if version == len(migrations) {
		db, err := Open(ctx, path)
		if err != nil {
			return nil, nil, err
		}
		return db, db.Close, nil
	}
	if version > len(migrations) || version == 0 {
		db, err := Open(ctx, path) // says so
		if err == nil {
			return db, db.Close, nil
		}
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "kvloom-merge-")
	if err != nil {
		return nil, nil, fmt.Errorf("migrate a copy of %s: %w", path, err)
	}
	copied := filepath.Join(dir, "copy.db")
	old, err := open(path, "_pragma=busy_timeout(20000)")
	if err == nil {
		_, err = old.sql.ExecContext(ctx, "VACUUM INTO ?", copied)
		err = errors.Join(err, old.Close())
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("migrate a copy of %s: %w", path, err), os.RemoveAll(dir))
	}
	db, err := Create(ctx, copied)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return db, func() error { return errors.Join(db.Close(), os.RemoveAll(dir)) }, nil
}

// Version is the schema of a database file.
func Version(ctx context.Context, path string) (int, error) {
	if _, err := os.Stat(path); err != nil {
		return 0, missing(path, err)
	}
	db, err := open(path, "_pragma=busy_timeout(20000)&_pragma=query_only(1)")
	if err != nil {
		return 0, err
	}
	v, err := db.version(ctx)
	return v, errors.Join(err, db.Close())
}

func sameFile(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, missing(a, err)
	}
	y, err := os.Stat(b)
	if err != nil {
		return false, missing(b, err)
	}
	return os.SameFile(x, y), nil
}
