package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/gen/plan"
)

func environment() Environment {
	return Environment{Device: json.RawMessage(`{"name":"NVIDIA H200"}`), DeviceUUID: "GPU-1", Driver: "580.1", NVRTC: "13.0", Generator: "test"}
}

func trial(run int64, warps int) Trial {
	return Trial{
		Run: run, Environment: environment().ID(), Spec: "llama-3.1-8b", Family: "page_score",
		Candidate: plan.Candidate{Family: plan.PageScore, Form: plan.Portable, Key: "d128 g4", Params: []plan.Param{{Name: "warps", Value: warps}}},
		Context:   131072, Batch: 1, SourceHash: "abc", Class: OK, L2: "cold", MedianUS: 14, LoUS: 13.9, HiUS: 14.1,
		Samples: []float64{14, 13.9, 14.1}, Started: time.Unix(1700000000, 5).UTC(), Seconds: 0.25,
	}
}

func create(t *testing.T) (*DB, int64) {
	t.Helper()
	db, err := Create(t.Context(), filepath.Join(t.TempDir(), "a b", "trials.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	run, err := db.BeginRun(t.Context(), "llama-3.1-8b", "hash", environment(), map[string]int{"budget": 5})
	if err != nil {
		t.Fatal(err)
	}
	return db, run
}

func TestPutAndRead(t *testing.T) {
	db, run := create(t)
	want := trial(run, 8)
	if isNew, err := db.Put(t.Context(), want); err != nil || !isNew {
		t.Fatalf("first put: new %v, %v", isNew, err)
	}
	if isNew, err := db.Put(t.Context(), want); err != nil || isNew {
		t.Errorf("second put of the same trial: new %v, %v; a resumed run must not store it twice", isNew, err)
	}
	other := trial(run, 4)
	other.MaxError, other.Class = math.NaN(), Wrong
	if _, err := db.Put(t.Context(), other); err != nil {
		t.Fatalf("a NaN error must be stored, not lost: %v", err)
	}
	got, err := db.Trials(t.Context(), Filter{Family: "page_score"})
	if err != nil || len(got) != 2 {
		t.Fatalf("%d trials, %v; want 2", len(got), err)
	}
	if d := cmp.Diff(want, got[0]); d != "" {
		t.Errorf("a trial changed on its way through the store (-want +got):\n%s", d)
	}
	if none, err := db.Trials(t.Context(), Filter{Context: 1}); err != nil || len(none) != 0 {
		t.Errorf("filter by context: %d trials, %v", len(none), err)
	}
	if s, err := db.SpentSeconds(t.Context(), "llama-3.1-8b", environment().ID()); err != nil || s != 0.75 {
		t.Errorf("spent %v s, %v; want 0.75: time is spent also on a trial that was there", s, err)
	}
}

// C6: two writers and four readers at once; no "database is locked" may reach a user.
func TestConcurrentUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	for w := range 2 {
		wg.Go(func() {
			db, err := Create(context.Background(), path)
			if err != nil {
				errs <- err
				return
			}
			defer db.Close()
			run, err := db.BeginRun(context.Background(), "m", "h", environment(), nil)
			for i := 0; i < 40 && err == nil; i++ {
				_, err = db.Put(context.Background(), trial(run, w*1000+i))
			}
			errs <- err
		})
	}
	for range 4 {
		wg.Go(func() {
			for range 20 {
				db, err := Open(context.Background(), path)
				if err != nil && strings.Contains(err.Error(), "does not exist") || err != nil && strings.Contains(err.Error(), "holds no trials") {
					time.Sleep(time.Millisecond) // before the first writer made it
					continue
				}
				if err == nil {
					_, err = db.Trials(context.Background(), Filter{})
					db.Close()
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if got, err := db.Trials(t.Context(), Filter{}); err != nil || len(got) != 80 {
		t.Errorf("%d trials, %v; want all 80 of both writers", len(got), err)
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a database ", 400)), 0o644); err != nil {
		t.Fatal(err)
	}
	newer := filepath.Join(dir, "newer.db")
	s, err := sql.Open("sqlite", newer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	tests := []struct {
		name, path, want string
	}{
		{"missing", filepath.Join(dir, "none.db"), "does not exist; kvloom tune makes it"},
		{"garbage", garbage, "the file is damaged"},
		{"newer schema", newer, "written by a newer kvloom"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			db, err := Open(t.Context(), tt.path)
			if err == nil {
				db.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.path) {
				t.Errorf("got %q; want it to name the file and say %q", err, tt.want)
			}
		})
	}
	if _, err := Create(t.Context(), newer); err == nil || !strings.Contains(err.Error(), "newer kvloom") {
		t.Errorf("writing to a newer schema: %v", err)
	}
}
