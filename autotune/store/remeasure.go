package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// Window is one measurement of a trial beside others: those of one contest and round ran one after the other, so that a drift of the
// GPU is in all of them, and can be compared in pairs.
type Window struct {
	Contest    string     `json:"contest"`
	Round      int        `json:"round"`
	Trial      string     `json:"trial"` // Trial.ID
	Run        int64      `json:"run"`
	Samples    []float64  `json:"samples"` // microseconds
	Conditions Conditions `json:"conditions"`
	Started    time.Time  `json:"started"`
	Seconds    float64    `json:"seconds"`
}

func (w Window) id() string { return contentID(w.Contest, fmt.Sprint(w.Round), w.Trial) }

// PutWindow stores a window of a stored trial, with the time that its run has spent on it.
func (db *DB) PutWindow(ctx context.Context, w Window) error {
	samples, err := json.Marshal(w.Samples)
	if err != nil {
		return fmt.Errorf("store: a window: %w", err)
	}
	conditions, err := json.Marshal(w.Conditions)
	if err != nil {
		return fmt.Errorf("store: a window: %w", err)
	}
	tx, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		return db.explain("store a window", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	_, err = tx.ExecContext(ctx, `INSERT INTO remeasure VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING`, w.id(), w.Contest, w.Round, w.Trial,
		w.Run, string(samples), string(conditions), w.Started.UTC().Format(time.RFC3339Nano), w.Seconds)
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE run SET spent_seconds = spent_seconds + ? WHERE id = ?`, w.Seconds, w.Run)
	}
	if err == nil {
		err = tx.Commit()
	}
	return db.explain("store a window", err)
}

// Windows returns the windows of all trials of a spec in an environment, in the order of contest start and round; empty arguments
// choose all.
func (db *DB) Windows(ctx context.Context, spec, environment string) ([]Window, error) {
	ws, err := query(ctx, db.sql, `SELECT w.contest, w.round, w.trial, w.run, w.samples, w.conditions, w.started, w.seconds FROM remeasure w
		JOIN trial t ON t.id = w.trial WHERE (?1 = '' OR t.spec_name = ?1) AND (?2 = '' OR t.environment = ?2) ORDER BY w.started, w.id`,
		func(rows *sql.Rows) (w Window, err error) {
			var samples, conditions, started string
			if err := rows.Scan(&w.Contest, &w.Round, &w.Trial, &w.Run, &samples, &conditions, &started, &w.Seconds); err != nil {
				return w, err
			}
			if err := json.Unmarshal([]byte(samples), &w.Samples); err != nil {
				return w, fmt.Errorf("samples: %w", err)
			}
			if err := json.Unmarshal([]byte(conditions), &w.Conditions); err != nil {
				return w, fmt.Errorf("conditions: %w", err)
			}
			w.Started, err = time.Parse(time.RFC3339Nano, started)
			return w, err
		}, spec, environment)
	return ws, db.explain("read windows", err)
}

// Condemn takes back that a trial is right: a later check found it wrong. Its times stay.
func (db *DB) Condemn(ctx context.Context, id string, class Class, message string) error {
	_, err := db.sql.ExecContext(ctx, `UPDATE trial SET class = ?, message = ? WHERE id = ?`, string(class), message, id)
	return db.explain("take back a trial", err)
}
