package store

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fixture makes a database of an older version from its text.
func fixture(t *testing.T, version int, path string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("v%d.sql", version)))
	if err != nil {
		t.Fatalf("every older schema needs a database in testdata: %v", err)
	}
	s, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Exec(string(text)); err != nil {
		t.Fatal(err)
	}
}

// Every older version in the tree is migrated with nothing lost, and passes the check afterwards.
func TestMigrations(t *testing.T) {
	for version := 1; version < len(migrations); version++ {
		t.Run(fmt.Sprintf("from %d", version), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "old.db")
			fixture(t, version, path)
			if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), "kvloom db check --migrate") {
				t.Errorf("reading an older schema: %v; want the remedy", err)
			}
			for range 2 { // the second time there is nothing to do
				db, err := Create(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				if faults, err := db.Check(t.Context()); err != nil || len(faults) > 0 {
					t.Errorf("after migrating: %v, %q", err, faults)
				}
				trials, err := db.Trials(t.Context(), Filter{})
				if err != nil || len(trials) != 20 {
					t.Errorf("%d trials, %v; want 20", len(trials), err)
				}
				if spent, err := db.SpentSeconds(t.Context(), "llama-3.1-8b", trials[0].Environment); err != nil || spent < 87 {
					t.Errorf("spent %g s, %v; want the 87 s of the old run", spent, err)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Two boards of one class were two environments in version 1; their trials of one kernel become one, the earlier.
func TestMigrationJoinsBoards(t *testing.T) {
	path := filepath.Join(t.TempDir(), "old.db")
	fixture(t, 1, path)
	s, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		`INSERT INTO environment SELECT 'other', json_set(device, '$.uuid', 'GPU-other'), 'GPU-other', driver, nvrtc, generator, first_seen FROM environment`,
		`INSERT INTO run SELECT 2, spec_name, spec_hash, 'other', options, started, finished, 5 FROM run`,
		`CREATE TEMP TABLE t AS SELECT * FROM trial LIMIT 3`,
		`UPDATE t SET id = 'other' || id, run = 2, environment = 'other', started = '2020-01-01T00:00:00Z', median_us = median_us, seconds = 1`,
		`INSERT INTO trial SELECT * FROM t`,
	} {
		if _, err := s.Exec(q); err != nil {
			t.Fatal(q, err)
		}
	}
	s.Close()
	db, err := Create(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	trials, err := db.Trials(t.Context(), Filter{})
	if err != nil || len(trials) != 20 {
		t.Fatalf("%d trials, %v; want the 20 kernels", len(trials), err)
	}
	early := 0
	for _, tr := range trials {
		if tr.Environment != trials[0].Environment {
			t.Error("boards of one class are still two environments")
		}
		if tr.Started.Year() == 2020 {
			early++
		}
	}
	if early != 3 {
		t.Errorf("%d trials of the board that measured first, want 3", early)
	}
	if spent, err := db.SpentSeconds(context.Background(), "llama-3.1-8b", trials[0].Environment); err != nil || spent < 92 {
		t.Errorf("spent %g s, %v; want the time of both boards", spent, err)
	}
}
