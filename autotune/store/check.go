package store

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
)

// Check reads all of a database and returns what is wrong with it, one sentence each; none where all is well. The error is for a file
// that cannot be read at all.
func (db *DB) Check(ctx context.Context) ([]string, error) {
	var faults []string
	for _, pragma := range []string{"integrity_check", "foreign_key_check"} {
		lines, err := query(ctx, db.sql, "PRAGMA "+pragma, scanText)
		if err != nil {
			return nil, db.explain("check", err)
		}
		for _, l := range lines {
			if l != "ok" {
				faults = append(faults, pragma+": "+l)
			}
		}
	}
	more, err := db.checkTrials(ctx)
	if err != nil {
		return faults, err
	}
	faults = append(faults, more...)
	spent, err := query(ctx, db.sql, `SELECT 'run ' || r.id || ' of ' || r.spec_name || ' spent less time than its trials took'
		FROM run r WHERE r.spent_seconds + 1e-6 < (SELECT coalesce(sum(seconds), 0) FROM trial t WHERE t.run = r.id)`, scanText)
	return append(faults, spent...), db.explain("check", err)
}

// scanText makes one line of a row, whatever its columns.
func scanText(rows *sql.Rows) (string, error) {
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	values, targets := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		targets[i] = &values[i]
	}
	if err := rows.Scan(targets...); err != nil {
		return "", err
	}
	if len(values) == 1 {
		return fmt.Sprint(values[0]), nil
	}
	return fmt.Sprint(values...), nil
}

func (db *DB) checkTrials(ctx context.Context) ([]string, error) {
	ids, err := query(ctx, db.sql, "SELECT id FROM trial ORDER BY rowid", scanText)
	if err != nil {
		return nil, db.explain("check", err)
	}
	trials, err := db.Trials(ctx, Filter{})
	if err != nil {
		return []string{err.Error()}, nil
	}
	var faults []string
	for i, t := range trials {
		name := fmt.Sprintf("trial %.8s (%s, %d x %d)", ids[i], t.Candidate.ID(), t.Context, t.Batch)
		if got := t.ID(); got != ids[i] {
			faults = append(faults, fmt.Sprintf("%s: its content has id %.8s", name, got))
		}
		if !slices.Contains(Classes, t.Class) {
			faults = append(faults, fmt.Sprintf("%s: unknown class %q", name, t.Class))
		}
		if t.Class == OK && len(t.Samples) == 0 {
			faults = append(faults, name+": ok without samples")
		}
		if m := median(t.Samples); len(t.Samples) > 0 && math.Abs(m-t.MedianUS) > 1e-9*m {
			faults = append(faults, fmt.Sprintf("%s: median %g, its samples have %g", name, t.MedianUS, m))
		}
	}
	return faults, nil
}

func median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(samples))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Collected counts what a collection removed, or would.
type Collected struct {
	Trials       int   `json:"trials"`
	Runs         int   `json:"runs"`
	Environments int   `json:"environments"`
	BytesBefore  int64 `json:"bytes_before"`
	BytesAfter   int64 `json:"bytes_after"`
}

// GC removes the trials with the ids given, with their windows; runs that ended and hold neither trials nor time; environments that
// nothing uses. Time that was spent stays counted. It then gives free pages back to the disk. A dry run changes nothing.
func (db *DB) GC(ctx context.Context, trials []string, dryRun bool) (c Collected, err error) {
	if c.BytesBefore, err = db.bytes(ctx); err != nil {
		return c, err
	}
	c.BytesAfter = c.BytesBefore
	tx, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		return c, db.explain("collect garbage", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	remove := func(n *int, q string, args ...any) error {
		res, err := tx.ExecContext(ctx, q, args...)
		if err != nil {
			return db.explain("collect garbage", err)
		}
		k, err := res.RowsAffected()
		*n += int(k)
		return db.explain("collect garbage", err)
	}
	for _, id := range trials {
		if err := remove(&c.Trials, "DELETE FROM trial WHERE id = ?", id); err != nil {
			return c, err
		}
	}
	if err := remove(&c.Runs, `DELETE FROM run WHERE finished <> '' AND spent_seconds = 0 AND id NOT IN (SELECT run FROM trial)
		AND id NOT IN (SELECT run FROM remeasure)`); err != nil {
		return c, err
	}
	if err := remove(&c.Environments, "DELETE FROM environment WHERE id NOT IN (SELECT environment FROM run UNION SELECT environment FROM trial)"); err != nil {
		return c, err
	}
	if dryRun {
		return c, nil
	}
	if err := tx.Commit(); err != nil {
		return c, db.explain("collect garbage", err)
	}
	if _, err := db.sql.ExecContext(ctx, "VACUUM"); err != nil {
		return c, db.explain("compact", err)
	}
	if _, err := db.sql.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return c, db.explain("compact", err)
	}
	c.BytesAfter, err = db.bytes(ctx)
	return c, err
}

func (db *DB) bytes(ctx context.Context) (n int64, err error) {
	err = db.sql.QueryRowContext(ctx, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").Scan(&n)
	return n, db.explain("read its size", err)
}
