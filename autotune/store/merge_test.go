package store

import (
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// filled makes a database of trials with these warps, each started so many seconds after an epoch.
func filled(t *testing.T, started int64, warps ...int) (*DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trials.db")
	db, err := Create(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	run, err := db.BeginRun(t.Context(), "m", "h", environment(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warps {
		tr := trial(run, w)
		tr.Started = time.Unix(started+int64(w), 0).UTC()
		if _, err := db.Put(t.Context(), tr); err != nil {
			t.Fatal(err)
		}
		if err := db.PutWindow(t.Context(), Window{Contest: path, Trial: tr.ID(), Run: run, Samples: []float64{1}, Started: tr.Started}); err != nil {
			t.Fatal(err)
		}
	}
	return db, path
}

// contents is what a database holds, run numbers left out.
func contents(t *testing.T, db *DB) (rows []string) {
	t.Helper()
	for _, q := range []string{"SELECT id, started, samples FROM trial", "SELECT id, trial FROM remeasure", "SELECT uid, spent_seconds FROM run", "SELECT id FROM environment"} {
		part, err := query(t.Context(), db.sql, q, scanText)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(part)
		rows = append(rows, part...)
	}
	return rows
}

func TestMerge(t *testing.T) {
	a, aPath := filled(t, 1000, 1, 2, 4)
	b, bPath := filled(t, 900, 2, 8)
	into := func(paths ...string) *DB {
		db, _ := filled(t, 0)
		if _, err := db.GC(t.Context(), nil, false); err != nil {
			t.Fatal(err)
		}
		db.sql.Exec("DELETE FROM run; DELETE FROM environment") //nolint:errcheck // an empty start
		for _, p := range paths {
			if _, err := db.Merge(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		if faults, err := db.Check(t.Context()); err != nil || len(faults) > 0 {
			t.Fatalf("after merging: %v %q", err, faults)
		}
		return db
	}
	want := contents(t, into(aPath, bPath))
	for name, paths := range map[string][]string{"the other order": {bPath, aPath}, "twice": {aPath, bPath, aPath, bPath, bPath}} {
		if d := cmp.Diff(want, contents(t, into(paths...))); d != "" {
			t.Errorf("%s must give the same database (-want +got):\n%s", name, d)
		}
	}
	m, err := a.Merge(t.Context(), bPath)
	if d := cmp.Diff(Merged{Trials: 1, Known: 1, Windows: 2, Runs: 1}, m); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if m, err := a.Merge(t.Context(), bPath); err != nil || m != (Merged{Known: 2}) {
		t.Errorf("merged again: %+v, %v; want nothing new", m, err)
	}
	trials, err := a.Trials(t.Context(), Filter{})
	if err != nil || len(trials) != 4 {
		t.Fatalf("%d trials, %v; want 4", len(trials), err)
	}
	for _, tr := range trials {
		if tr.Candidate.Param("warps") == 2 && tr.Started.Unix() != 902 {
			t.Errorf("of two measurements of one trial the earlier stays, got that of %v", tr.Started)
		}
	}
	if _, err := b.Merge(t.Context(), bPath); err == nil || !strings.Contains(err.Error(), "into itself") {
		t.Errorf("merged into itself: %v", err)
	}
}

// A database of an older schema is merged without being touched.
func TestMergeOlder(t *testing.T) {
	old := filepath.Join(t.TempDir(), "old.db")
	fixture(t, 1, old)
	db, _ := filled(t, 0, 1)
	for range 2 {
		if _, err := db.Merge(t.Context(), old); err != nil {
			t.Fatal(err)
		}
	}
	if trials, err := db.Trials(t.Context(), Filter{}); err != nil || len(trials) != 21 {
		t.Errorf("%d trials, %v; want 21", len(trials), err)
	}
	if v, err := Version(t.Context(), old); err != nil || v != 1 {
		t.Errorf("the source has schema %d now, %v; it must not be written", v, err)
	}
}

func TestCheckFindsFaults(t *testing.T) {
	db, path := filled(t, 0, 1, 2, 4)
	for _, q := range []string{
		"UPDATE trial SET source_hash = 'changed' WHERE rowid = 1", "UPDATE trial SET class = 'good' WHERE rowid = 2",
		"UPDATE trial SET samples = '[99]' WHERE rowid = 3", "UPDATE run SET spent_seconds = 0",
	} {
		if _, err := db.sql.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	faults, err := db.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(faults, "\n")
	for _, want := range []string{"its content has id", `unknown class "good"`, "its samples have 99", "spent less time than its trials took"} {
		if !strings.Contains(all, want) {
			t.Errorf("no fault says %q:\n%s", want, all)
		}
	}
	s, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Exec("PRAGMA foreign_keys = OFF; UPDATE trial SET run = 77"); err != nil {
		t.Fatal(err)
	}
	if faults, err := db.Check(t.Context()); err != nil || !strings.Contains(strings.Join(faults, "\n"), "foreign_key_check") {
		t.Errorf("a trial without its run: %v, %q", err, faults)
	}
}

func TestGC(t *testing.T) {
	db, _ := filled(t, 0, 1, 2, 4)
	trials, err := db.Trials(t.Context(), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	empty, err := db.BeginRun(t.Context(), "m", "h", Environment{Device: []byte(`{"name":"other"}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.EndRun(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	before := contents(t, db)
	stale := []string{trials[0].ID()}
	want := Collected{Trials: 1, Runs: 1, Environments: 1}
	for _, dry := range []bool{true, false} {
		c, err := db.GC(t.Context(), stale, dry)
		c.BytesBefore, c.BytesAfter = 0, 0
		if d := cmp.Diff(want, c); d != "" || err != nil {
			t.Errorf("dry run %v: %v (-want +got):\n%s", dry, err, d)
		}
		if d := cmp.Diff(before, contents(t, db)); dry && d != "" {
			t.Errorf("a dry run changed the database:\n%s", d)
		}
	}
	if trials, err := db.Trials(t.Context(), Filter{}); err != nil || len(trials) != 2 {
		t.Errorf("%d trials, %v; want 2", len(trials), err)
	}
	if ws, err := db.Windows(t.Context(), "", ""); err != nil || len(ws) != 2 {
		t.Errorf("%d windows, %v; want those of the trials that stay", len(ws), err)
	}
	if spent, err := db.SpentSeconds(t.Context(), "m", environment().ID()); err != nil || spent != 0.75 {
		t.Errorf("spent %g s, %v; time that was spent stays counted", spent, err)
	}
}
