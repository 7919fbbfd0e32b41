package store

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/kvloom/kvloom/gen/plan"
)

// Class is how a trial ended.
type Class string

// The classes. Every one but OK and Cut is a failure of the candidate.
const (
	OK           Class = "ok"
	Wrong        Class = "wrong"         // outside the bound, an element not written, or a guard band touched
	CompileError Class = "compile_error" // NVRTC refused it
	LaunchError  Class = "launch_error"  // the driver refused to load or launch it
	Fault        Class = "fault"         // illegal address and other sticky errors
	Hang         Class = "hang"          // no answer within the time limit
	Crash        Class = "crash"         // the measuring process died
	Cut          Class = "cut"           // right, but more than 3 times the best after the first samples
)

// Classes are all classes.
var Classes = []Class{OK, Wrong, CompileError, LaunchError, Fault, Hang, Crash, Cut}

// Trial is one candidate measured for one workload in one environment.
type Trial struct {
	Run         int64          `json:"run"`
	Environment string         `json:"environment"`
	Spec        string         `json:"spec"`
	Family      string         `json:"family"` // the candidate's stem, or "dense" for page_attend over all pages
	Candidate   plan.Candidate `json:"candidate"`
	Context     int            `json:"context"`
	Batch       int            `json:"batch"`
	SourceHash  string         `json:"source_hash"`
	CubinHash   string         `json:"cubin_hash"`
	Registers   int            `json:"registers"`
	SharedBytes int            `json:"shared_bytes"`
	SpillBytes  int            `json:"spill_bytes"`
	Class       Class          `json:"class"`
	Message     string         `json:"message"`
	MaxError    float64        `json:"max_error"`
	Bound       float64        `json:"bound"`
	L2          string         `json:"l2"`
	MedianUS    float64        `json:"median_us"`
	LoUS        float64        `json:"lo_us"`
	HiUS        float64        `json:"hi_us"`
	Samples     []float64      `json:"samples"` // microseconds
	Default     bool           `json:"default"`
	Started     time.Time      `json:"started"`
	Seconds     float64        `json:"seconds"`
	Conditions  Conditions     `json:"conditions"`
	Windows     []Window       `json:"windows,omitempty"` // measured again beside others
}

// Conditions are the state of the GPU while a trial's windows were measured, from NVML where there is one. Zero: not known.
type Conditions struct {
	SMClockMHz  int     `json:"sm_clock_mhz,omitempty"` // the lowest seen
	MemClockMHz int     `json:"mem_clock_mhz,omitempty"`
	PowerWatts  float64 `json:"power_watts,omitempty"` // the highest seen
	Celsius     int     `json:"celsius,omitempty"`
	Reasons     string  `json:"clock_reasons,omitempty"` // of the windows that were kept
	Dropped     int     `json:"dropped,omitempty"`       // windows dropped because the GPU was throttled
	Throttled   bool    `json:"throttled,omitempty"`     // the retries ran out: the samples are of a throttled GPU
	Others      int     `json:"others,omitempty"`        // other processes on the GPU
}

// ID is the content id of a trial: the same candidate, source and workload in the same environment is the same trial.
func (t Trial) ID() string {
	params, err := json.Marshal(t.Candidate.Params)
	if err != nil {
		panic("BUG: store: parameters: " + err.Error())
	}
	return trialID(t.Environment, t.Family, t.Candidate.Key, t.Context, t.Batch, string(t.Candidate.Form), string(params), t.SourceHash, t.L2)
}

func trialID(environment, family, key string, context, batch int, form, params, source, l2 string) string {
	return contentID(environment, family, key, fmt.Sprint(context, " ", batch), form, params, source, l2)
}

// Put stores a finished trial in one transaction, together with the tuning time that its run has spent. A trial that is there
// already is left as it is, and reported as not new.
func (db *DB) Put(ctx context.Context, t Trial) (isNew bool, err error) {
	e, err := t.encode()
	if err != nil {
		return false, err
	}
	tx, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		return false, db.explain("store a trial", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	res, err := tx.ExecContext(ctx, `INSERT INTO trial VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING`,
		t.ID(), t.Run, t.Environment, t.Spec, t.Family, t.Candidate.Key, t.Context, t.Batch,
		string(t.Candidate.Form), e.params, e.candidate, t.SourceHash, t.CubinHash, t.Registers, t.SharedBytes, t.SpillBytes,
		string(t.Class), t.Message, finite(t.MaxError), finite(t.Bound), t.L2, t.MedianUS, t.LoUS, t.HiUS, e.samples, t.Default,
		t.Started.UTC().Format(time.RFC3339Nano), t.Seconds, e.conditions)
	if err != nil {
		return false, db.explain("store a trial", err)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE run SET spent_seconds = spent_seconds + ? WHERE id = ?`, t.Seconds, t.Run); err != nil {
		return false, db.explain("store a trial", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, db.explain("store a trial", err)
	}
	return n == 1, db.explain("store a trial", tx.Commit())
}

// finite makes a number that SQLite can hold: it stores NaN as NULL. A NaN error is as large as an error can be.
func finite(x float64) float64 {
	if math.IsNaN(x) || x > math.MaxFloat64 {
		return math.MaxFloat64
	}
	return x
}

// encoded are a trial's columns of JSON.
type encoded struct{ params, candidate, samples, conditions string }

func (t Trial) encode() (encoded, error) {
	if t.Samples == nil {
		t.Samples = []float64{}
	}
	var e encoded
	for _, column := range []struct {
		into *string
		from any
	}{{&e.params, t.Candidate.Params}, {&e.candidate, t.Candidate}, {&e.samples, t.Samples}, {&e.conditions, t.Conditions}} {
		b, err := json.Marshal(column.from)
		if err != nil {
			return e, fmt.Errorf("store: a trial of %s: %w", t.Candidate.ID(), err)
		}
		*column.into = string(b)
	}
	return e, nil
}

// Filter chooses trials; empty fields choose all.
type Filter struct {
	Spec, Family, Environment string
	Context, Batch            int
}

// Trials returns the chosen trials in the order in which they were stored.
func (db *DB) Trials(ctx context.Context, f Filter) ([]Trial, error) {
	rows, err := db.sql.QueryContext(ctx, `SELECT run, environment, spec_name, family, candidate, context, batch, source_hash, cubin_hash,
		registers, shared_bytes, spill_bytes, class, message, max_error, bound, l2, median_us, lo_us, hi_us, samples, is_default, started, seconds, conditions
		FROM trial WHERE (?1 = '' OR spec_name = ?1) AND (?2 = '' OR family = ?2) AND (?3 = '' OR environment = ?3)
		AND (?4 = 0 OR context = ?4) AND (?5 = 0 OR batch = ?5) ORDER BY rowid`, f.Spec, f.Family, f.Environment, f.Context, f.Batch)
	if err != nil {
		return nil, db.explain("read trials", err)
	}
	defer rows.Close()
	var trials []Trial
	for rows.Next() {
		var t Trial
		var candidate, samples, started, conditions string
		if err := rows.Scan(&t.Run, &t.Environment, &t.Spec, &t.Family, &candidate, &t.Context, &t.Batch, &t.SourceHash, &t.CubinHash,
			&t.Registers, &t.SharedBytes, &t.SpillBytes, &t.Class, &t.Message, &t.MaxError, &t.Bound, &t.L2,
			&t.MedianUS, &t.LoUS, &t.HiUS, &samples, &t.Default, &started, &t.Seconds, &conditions); err != nil {
			return nil, db.explain("read trials", err)
		}
		if err := t.decode(candidate, samples, started, conditions); err != nil {
			return nil, db.explain("read trials", err)
		}
		trials = append(trials, t)
	}
	if err := rows.Err(); err != nil {
		return nil, db.explain("read trials", err)
	}
	return trials, db.attachWindows(ctx, trials, f)
}

func (db *DB) attachWindows(ctx context.Context, trials []Trial, f Filter) error {
	windows, err := db.Windows(ctx, f.Spec, f.Environment)
	if err != nil || len(windows) == 0 {
		return err
	}
	of := map[string][]Window{}
	for _, w := range windows {
		of[w.Trial] = append(of[w.Trial], w)
	}
	for i := range trials {
		trials[i].Windows = of[trials[i].ID()]
	}
	return nil
}

func (t *Trial) decode(candidate, samples, started, conditions string) error {
	if err := json.Unmarshal([]byte(conditions), &t.Conditions); err != nil {
		return fmt.Errorf("conditions: %w", err)
	}
	if err := json.Unmarshal([]byte(candidate), &t.Candidate); err != nil {
		return fmt.Errorf("candidate: %w", err)
	}
	if err := json.Unmarshal([]byte(samples), &t.Samples); err != nil {
		return fmt.Errorf("samples: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, started)
	if err != nil {
		return fmt.Errorf("start time: %w", err)
	}
	t.Started = at
	return nil
}

// SpentSeconds is the tuning time that all runs of a spec have spent in an environment, so that a budget counts across resumes.
func (db *DB) SpentSeconds(ctx context.Context, spec, environment string) (float64, error) {
	var s float64
	err := db.sql.QueryRowContext(ctx, `SELECT coalesce(sum(spent_seconds), 0) FROM run WHERE spec_name = ? AND environment = ?`, spec, environment).Scan(&s)
	return s, db.explain("read runs", err)
}

// EnvironmentOf returns a stored environment.
func (db *DB) EnvironmentOf(ctx context.Context, id string) (Environment, error) {
	var e Environment
	var dev string
	err := db.sql.QueryRowContext(ctx, `SELECT device, device_uuid, driver, nvrtc, generator FROM environment WHERE id = ?`, id).
		Scan(&dev, &e.DeviceUUID, &e.Driver, &e.NVRTC, &e.Generator)
	e.Device = json.RawMessage(dev)
	return e, db.explain("read an environment", err)
}
