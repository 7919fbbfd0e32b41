package cli

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/specs"
)

// command runs a command line that must succeed, and returns what it printed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := Run(args, &stdout, &stderr); code != 0 {
		t.Fatalf("kvloom %s: exit code %d: %s", strings.Join(args, " "), code, &stderr)
	}
	return stdout.String()
}

// testDB is a database of trials of today's page_score candidates of smollm2-135m, faster with each; scale multiplies the times.
func testDB(t *testing.T, scale float64, n ...int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trials.db")
	db, err := store.Create(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	env := store.Environment{Device: json.RawMessage(`{"name":"NVIDIA H200","sms":132,"shared_per_sm":233472,"registers_per_sm":65536,"threads_per_sm":2048}`),
		DeviceUUID: "GPU-0", Driver: "580.1", NVRTC: "13.0"}
	run, err := db.BeginRun(t.Context(), "smollm2-135m", "h", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	candidates := plan.New(spec, plan.Targets["sm_90a"]).Of(plan.PageScore).Candidates
	if len(n) == 0 {
		candidates = candidates[:6] // else all
	}
	for i, c := range candidates {
		src, err := render.Candidate(c)
		if err != nil {
			t.Fatal(err)
		}
		us := scale * (10 - float64(i)*5/float64(len(candidates)-1))
		tr := store.Trial{Run: run, Environment: env.ID(), Spec: spec.Name, Family: "page_score", Candidate: c, Context: 1024, Batch: 1, SourceHash: src.Hash,
			Class: store.OK, L2: "cold", Samples: []float64{us, us * 1.001, us * 0.999, us * 1.002, us * 0.998, us, us}, MedianUS: us, LoUS: us * 0.998, HiUS: us * 1.002,
			Default: i == 0, Registers: 96, Started: time.Unix(int64(i), 0), Seconds: 0.5}
		if i == 3 {
			tr.Class, tr.Message = store.Wrong, "one element of 40"
		}
		if _, err := db.Put(t.Context(), tr); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// The export is what Go's own reader of benchmarks reads, every sample a line of its own.
func TestExportBenchmarks(t *testing.T) {
	path := testDB(t, 1)
	for _, tt := range []struct {
		args []string
		want string
		n    int
	}{
		{nil, "PageScore/model=smollm2-135m/context=1024/batch=1/form=hopper/", 35},
		{[]string{"--best"}, "PageScore/model=smollm2-135m/context=1024/batch=1", 7},
	} {
		r := benchfmt.NewReader(strings.NewReader(command(t, append([]string{"db", "export", path, "--format", "benchfmt"}, tt.args...)...)), "export")
		n := 0
		for r.Scan() {
			res, ok := r.Result().(*benchfmt.Result)
			if !ok {
				t.Fatalf("not a result: %v", r.Result())
			}
			if n == 0 && !strings.HasPrefix(string(res.Name), tt.want) {
				t.Errorf("name %s, want %s", res.Name, tt.want)
			}
			if res.GetConfig("device") != "NVIDIA H200" || res.GetConfig("driver") != "580.1" {
				t.Errorf("device %q, driver %q", res.GetConfig("device"), res.GetConfig("driver"))
			}
			if us, ok := res.Value("sec/op"); !ok || us < 4.9e-6 || us > 10.1e-6 {
				t.Errorf("value %g, %v", us, ok)
			}
			n++
		}
		if r.Err() != nil || n != tt.n {
			t.Errorf("%d results, %v; want %d", n, r.Err(), tt.n)
		}
	}
}

func TestDBVerbs(t *testing.T) {
	a, b := testDB(t, 1), testDB(t, 2)
	merged := filepath.Join(t.TempDir(), "m.db")
	for _, want := range []string{"6 trials new, 0 known", "0 trials new, 6 known"} {
		if got := command(t, "db", "merge", merged, a); !strings.Contains(got, want) {
			t.Errorf("merge printed %q, want %q", got, want)
		}
	}
	command(t, "db", "merge", merged, b)
	if got := command(t, "db", "check", merged); !strings.Contains(got, "is sound") {
		t.Error(got)
	}
	if got := command(t, "db", "gc", merged, "--stale"); !strings.Contains(got, "removed 0 trials") {
		t.Errorf("trials of today's kernels must stay: %s", got)
	}
	db, err := store.Create(t.Context(), merged)
	if err != nil {
		t.Fatal(err)
	}
	trials, err := db.Trials(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	old := trials[0]
	old.SourceHash, old.Candidate.Key = "changed", "other"
	if _, err := db.Put(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	db.Close()
	if got := command(t, "db", "gc", merged, "--stale"); !strings.Contains(got, "removed 1 trials") {
		t.Errorf("a trial of a changed kernel must go: %s", got)
	}
}
