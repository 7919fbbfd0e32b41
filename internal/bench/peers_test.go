package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// python writes a program that stands in for Python: it answers what a peer would, whatever it is asked.
func python(t *testing.T, answers string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncat >/dev/null\n"+answers), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMeasurePeers(t *testing.T) {
	lines := func() []Result {
		return []Result{
			{Family: score, Shape: Shape{QHeads: 32, KVHeads: 8, Rank: 4, Tokens: 1024, L2: "cold"}, MedianUS: 10, Baselines: map[string]float64{}},
			{Family: attend, Shape: Shape{QHeads: 32, KVHeads: 8, Tokens: 1024, L2: "cold"}, MedianUS: 5, Baselines: map[string]float64{}},
		}
	}
	for _, c := range []struct {
		reason, peer, answers string
		want                  []map[string]float64
		notes                 []string
	}{
		{"answers find their lines among a peer's own talk", "torch",
			`echo "Compiling, please wait"; echo '{"index": 1, "peers": {"torch": 50}, "left_out": {}}'; echo '[1]'; echo '{"index": 0, "peers": {"torch.compile": 150.5}, "left_out": {}}'`,
			[]map[string]float64{{"torch.compile": 150.5}, {"torch": 50}}, nil},
		{"a peer sees only what it can do", "flashinfer", `echo '{"index": 0, "peers": {"flashinfer": 12}, "left_out": {}}'; echo '{"index": 1, "peers": {"flashinfer": 13}}'`,
			[]map[string]float64{{}, {"flashinfer": 12}}, nil},
		{"what a peer refuses is said", "locks-kv", `echo '{"index": 0, "peers": {}, "left_out": {"locks-kv": "AssertionError: 1 <= G <= 8"}}'`,
			[]map[string]float64{{}, {}}, []string{"left out: locks-kv of page_score, 32/8, 1024 tokens: AssertionError: 1 <= G <= 8"}},
		{"what was measured before a peer died is kept, and its last words are told", "torch",
			`echo '{"index": 0, "peers": {"torch": 99}}'; echo "Traceback" >&2; echo "RuntimeError: out of memory" >&2; exit 1`,
			[]map[string]float64{{"torch": 99}, {}}, []string{"left out: torch: exit status 1: RuntimeError: out of memory"}},
		{"a peer that nobody knows", "triton", "", []map[string]float64{{}, {}}, []string{`no peer called "triton"; there are torch, flashinfer, locks-kv`}},
	} {
		kept := 0
		results := lines()
		b := Bench{Python: python(t, c.answers), Peers: []string{c.peer}, Progress: func(string) {}, Keep: func([]Result) error { kept++; return nil }}
		notes := b.measurePeers(t.Context(), results)
		if diff := cmp.Diff(c.want, []map[string]float64{results[0].Baselines, results[1].Baselines}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
		if diff := cmp.Diff(c.notes, notes); diff != "" {
			t.Errorf("%s: notes (-want +got):\n%s", c.reason, diff)
		}
		if want := len(c.want[0]) + len(c.want[1]); kept != want {
			t.Errorf("%s: kept %d times, want %d", c.reason, kept, want)
		}
	}
}

// locks-kv reads its rank when it is imported, so a process serves one; lines that have no rank go with the first.
func TestPeerGroups(t *testing.T) {
	var results []Result
	for _, s := range []struct {
		family string
		rank   int
	}{{dense, 0}, {attend, 0}, {score, 4}, {choose, 0}, {score, 8}, {summary, 4}} {
		results = append(results, Result{Family: s.family, Shape: Shape{Rank: s.rank}})
	}
	got := peers["locks-kv"].groups(results)
	if diff := cmp.Diff([]group{{4, []int{1, 2, 3, 5}}, {8, []int{4}}}, got, cmp.AllowUnexported(group{})); diff != "" {
		t.Error(diff)
	}
	if got := peers["torch"].groups(results); len(got) != 1 || len(got[0].list) != 6 {
		t.Errorf("torch: %+v", got)
	}
}

// The programs must at least be Python, also where no package of theirs is installed.
func TestPeerProgramsCompile(t *testing.T) {
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	for name, p := range peers {
		check := exec.Command(path, "-c", "import sys; compile(sys.stdin.read(), 'peer', 'exec')")
		check.Stdin = strings.NewReader(peersCommon + "\n\n" + p.source)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
