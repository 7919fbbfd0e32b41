package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Environment is what a measurement depends on besides the kernel.
type Environment struct {
	Device     json.RawMessage `json:"device"` // device.Info
	DeviceUUID string          `json:"device_uuid"`
	Driver     string          `json:"driver"`
	NVRTC      string          `json:"nvrtc"`
	Generator  string          `json:"generator"`
}

// ID is the environment's content id. Boards of one class (name, SMs, clocks, caches, MIG, ECC) with one driver and compiler are one
// environment, so that a database can be carried to the next board of the same kind. The generator is left out: a trial is tied to
// its source by the source hash.
func (e Environment) ID() string {
	return contentID(string(e.class()), e.Driver, e.NVRTC)
}

// boardKeys of a device record name one board, or where it is plugged in.
var boardKeys = []string{"uuid", "ordinal"}

// class is the device record without what names the board.
func (e Environment) class() json.RawMessage {
	var record map[string]any
	if json.Unmarshal(e.Device, &record) != nil {
		return e.Device
	}
	for _, k := range boardKeys {
		delete(record, k)
	}
	b, err := json.Marshal(record) // sorted keys
	if err != nil {
		panic("BUG: store: device record: " + err.Error())
	}
	return b
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
		env.ID(), string(env.class()), env.DeviceUUID, env.Driver, env.NVRTC, env.Generator, now); err != nil {
		return 0, db.explain("record the environment", err)
	}
	res, err := db.sql.ExecContext(ctx, `INSERT INTO run (spec_name, spec_hash, environment, options, started, uid, device_uuid) VALUES (?,?,?,?,?,?,?)`,
		specName, specHash, env.ID(), string(text), now, rand.Text(), env.DeviceUUID)
	if err != nil {
		return 0, db.explain("record the run", err)
	}
	return res.LastInsertId()
}

// Spend adds to the tuning time of a run what no trial and no window accounts for.
func (db *DB) Spend(ctx context.Context, run int64, seconds float64) error {
	_, err := db.sql.ExecContext(ctx, `UPDATE run SET spent_seconds = spent_seconds + ? WHERE id = ?`, seconds, run)
	return db.explain("record the time of a run", err)
}

// EndRun records that a run came to its end, or was stopped on request.
func (db *DB) EndRun(ctx context.Context, run int64) error {
	_, err := db.sql.ExecContext(ctx, `UPDATE run SET finished = ? WHERE id = ?`, time.Now().UTC().Format(time.RFC3339), run)
	return db.explain("end the run", err)
}
