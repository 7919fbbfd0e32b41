package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
)

// environmentsByClass is the code of version 2: environment and trial ids without the board. Of trials that become one, the one that
// was measured first stays.
func environmentsByClass(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, "PRAGMA defer_foreign_keys = ON"); err != nil {
		return err
	}
	if err := nameRuns(ctx, tx); err != nil {
		return err
	}
	envs, err := query(ctx, tx, "SELECT id, device, device_uuid, driver, nvrtc, generator, first_seen FROM environment ORDER BY first_seen, id",
		func(rows *sql.Rows) (e environmentRow, err error) {
			var device string
			err = rows.Scan(&e.id, &device, &e.DeviceUUID, &e.Driver, &e.NVRTC, &e.Generator, &e.seen)
			e.Device = json.RawMessage(device)
			return e, err
		})
	if err != nil {
		return err
	}
	for _, e := range envs {
		now := e.ID()
		if now == e.id {
			continue
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO environment VALUES (?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
			now, string(e.class()), e.DeviceUUID, e.Driver, e.NVRTC, e.Generator, e.seen); err != nil {
			return err
		}
		if err := moveTrials(ctx, tx, e.id, now); err != nil {
			return err
		}
		for _, q := range []string{"UPDATE run SET environment = ?2 WHERE environment = ?1", "DELETE FROM environment WHERE id = ?1 AND id <> ?2"} {
			if _, err := tx.ExecContext(ctx, q, e.id, now); err != nil {
				return err
			}
		}
	}
	return nil
}

type environmentRow struct {
	Environment
	id, seen string
}

// nameRuns gives runs of version 1 an identity: what they were, and their number, which copies of the file share.
func nameRuns(ctx context.Context, tx *sql.Tx) error {
	type run struct {
		id   int64
		uid  string
		uuid string
	}
	runs, err := query(ctx, tx, `SELECT r.id, r.spec_name, r.spec_hash, r.environment, r.options, r.started, e.device_uuid
		FROM run r JOIN environment e ON e.id = r.environment`, func(rows *sql.Rows) (r run, err error) {
		var parts [5]string
		err = rows.Scan(&r.id, &parts[0], &parts[1], &parts[2], &parts[3], &parts[4], &r.uuid)
		r.uid = contentID(append(parts[:], fmt.Sprint(r.id))...)
		return r, err
	})
	if err != nil {
		return err
	}
	for _, r := range runs {
		if _, err := tx.ExecContext(ctx, "UPDATE run SET uid = ?, device_uuid = ? WHERE id = ?", r.uid, r.uuid, r.id); err != nil {
			return err
		}
	}
	return nil
}

func moveTrials(ctx context.Context, tx *sql.Tx, from, to string) error {
	type move struct{ id, now string }
	moves, err := query(ctx, tx, `SELECT id, family, shape_key, context, batch, form, params, source_hash, l2 FROM trial
		WHERE environment = ? ORDER BY started, id`, func(rows *sql.Rows) (m move, err error) {
		var family, key, form, params, source, l2 string
		var context, batch int
		err = rows.Scan(&m.id, &family, &key, &context, &batch, &form, &params, &source, &l2)
		m.now = trialID(to, family, key, context, batch, form, params, source, l2)
		return m, err
	}, from)
	if err != nil {
		return err
	}
	for _, m := range moves {
		if _, err := tx.ExecContext(ctx, "DELETE FROM trial WHERE id = ?1 AND started > (SELECT started FROM trial WHERE id = ?2)", m.now, m.id); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, "UPDATE OR IGNORE trial SET id = ?, environment = ? WHERE id = ?", m.now, to, m.id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n > 0 {
			continue
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM trial WHERE id = ?", m.id); err != nil {
			return err
		}
	}
	return nil
}

// query reads all rows before anything else uses the transaction.
func query[T any](ctx context.Context, tx interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}, text string, scan func(*sql.Rows) (T, error), args ...any) ([]T, error) {
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}
