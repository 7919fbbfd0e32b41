package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// fakeChild measures without a GPU: every candidate takes a time that follows from its parameters, times KVLOOM_TEST_SCALE, with a little
// noise.
func fakeChild() {
	scale := 1.0
	fmt.Sscan(os.Getenv("KVLOOM_TEST_SCALE"), &scale)              //nolint:errcheck // 1 where it is not set
	sleep, _ := time.ParseDuration(os.Getenv("KVLOOM_TEST_SLEEP")) // 0 where it is not set
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(measure.Hello{Info: device.Info{Backend: "cuda", Name: "NVIDIA H200", UUID: "GPU-test-" + os.Getenv("KVLOOM_TEST_UUID"), SMs: 132, SharedPerSM: 233472, RegistersPerSM: 65536, ThreadsPerSM: 2048}})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for n := 0; in.Scan(); n++ {
		var r measure.Request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			os.Exit(3)
		}
		time.Sleep(sleep)
		if r.Thorough {
			_ = out.Encode(measure.Response{Class: string(store.OK)})
			continue
		}
		us := 10 * scale
		for i, p := range r.Candidate.Params {
			us *= 1 + 0.01*float64(i+1)*float64(p.Value%7)
		}
		var samples []float64
		for i := range max(r.Samples, 15) {
			samples = append(samples, us*(1+0.0005*float64((n+i)%5)))
		}
		_ = out.Encode(measure.Response{Class: string(store.OK), Samples: samples})
	}
}

// tune runs the verb with the fake child and returns exit code, stdout and stderr.
func tune(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	t.Setenv("KVLOOM_TEST_UUID", fmt.Sprint(os.Getpid()))
	child, err := exec.LookPath("kvloom-fake-child")
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code := Run(append([]string{"tune", "smollm2-135m", "--only", "page_select", "--child", child}, args...), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// A runner's first job makes the baseline; the same code passes the gate, a slower machine fails it, and every output is there.
func TestTuneCI(t *testing.T) {
	nvrtctest.Compiler(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	base := []string{"--ci", "--baseline", in("base.kvb"), "--budget", "20m"}
	code, stdout, stderr := tune(t, append(base, "--db", in("a.db"), "--out", in("base.kvb"), "--page", in("a.html"))...)
	if code != 0 || !strings.Contains(stderr, "no baseline yet") || !strings.Contains(stdout, "all candidates measured") {
		t.Fatalf("first job: exit code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = tune(t, append(base, "--db", in("b.db"), "--out", in("b.kvb"), "--page", in("b.html"))...)
	if code != 0 || strings.Contains(stdout, "SLOWER") || !strings.Contains(stdout, "SAME") || !strings.Contains(stderr, "holds no samples") {
		t.Errorf("the same again: exit code %d\n%s%s", code, stdout, stderr)
	}
	command(t, "db", "export", in("a.db"), "--format", "bundle", "-o", in("export.kvb"))
	if got := command(t, "compare", in("base.kvb"), in("export.kvb")); strings.Count(got, "SAME") != 3 {
		t.Errorf("the bundle of an export and that of tune differ:\n%s", got)
	}
	t.Setenv("KVLOOM_TEST_SCALE", "1.3")
	code, stdout, stderr = tune(t, "--ci", "--baseline", in("a.db"), "--db", in("c.db"), "--out", in("c.kvb"), "--page", in("c.html"), "--junit", in("c.xml"), "--summary", in("c.md"), "--github")
	if code != 1 || !strings.Contains(stdout, "::error title=kvloom SLOWER page_select") || !strings.Contains(stderr, "the gate fails: 3 SLOWER of 3") {
		t.Errorf("30 %% slower: exit code %d\n%s%s", code, stdout, stderr)
	}
	for name, want := range map[string]string{"c.html": "Against a.db", "c.xml": `failures="3"`, "c.md": "| SLOWER |", "c.kvb": "kvloom"} {
		if b, err := os.ReadFile(in(name)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v; want %q in it", name, err, want)
		}
	}
	if code, _, stderr := tune(t, "--ci", "--baseline", in("c.md"), "--db", in("d.db")); code != 1 || !strings.Contains(stderr, "--baseline") {
		t.Errorf("a baseline that is none: exit code %d, %s", code, stderr)
	}
	db, err := store.Open(t.Context(), in("b.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if ws, err := db.Windows(t.Context(), "", ""); err != nil || len(ws) == 0 {
		t.Errorf("%d windows, %v; leaders have to be measured again", len(ws), err)
	}
}

// The job is resumable: a trial limit stands for the runner that was taken away. The A/A test holds on a quiet machine.
func TestTuneResumeAndSelfCheck(t *testing.T) {
	nvrtctest.Compiler(t)
	dir := t.TempDir()
	args := []string{"--db", filepath.Join(dir, "t.db"), "--out", filepath.Join(dir, "t.kvb")}
	if code, stdout, stderr := tune(t, append(args, "--max-trials", "4")...); code != 0 || !strings.Contains(stderr, "resumes at the next trial") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := tune(t, args...); code != 0 || !strings.Contains(stdout, ", 4 known, 0 left") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr := tune(t, append(args, "--l2", "warm", "--max-trials", "2")...)
	if code != 0 || !strings.Contains(stdout, "2 trials measured, 0 known") {
		t.Errorf("warm: exit code %d; trials with a cold L2 do not count\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = tune(t, "--self-check", "--pairs", "6", "--json")
	var s struct{ Pairs, Differ, Atmost int }
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || code != 0 || s.Pairs != 6 || s.Differ != 0 {
		t.Errorf("exit code %d, %v: %+v\n%s", code, err, s, stderr)
	}
}

// A second tuner of the same GPU is refused by the first one's name.
func TestTuneRefusesASecond(t *testing.T) {
	lock, err := store.LockDevice(t.Context(), store.LockFolder(), "GPU-test-"+fmt.Sprint(os.Getpid()), "kvloom tune other", 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release() //nolint:errcheck // of the test
	dir := t.TempDir()
	if code, _, stderr := tune(t, "--db", filepath.Join(dir, "t.db")); code != 1 || !strings.Contains(stderr, "kvloom tune other (pid") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "t.db")); err == nil {
		t.Error("the refused tuner made a database")
	}
}

// Ctrl-C stops after the trial in flight, stores it, writes the bundle of what there is and says how to go on.
func TestTuneCtrlC(t *testing.T) {
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	compile := autotune.CompileWith(nvrtctest.Compiler(t))
	for _, c := range plan.New(spec, plan.Targets["sm_90a"]).Of(plan.PageSelect).Candidates { // into the cache: the stop shall meet a trial
		src, err := render.Candidate(c)
		if err == nil {
			_, err = compile(t.Context(), src)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KVLOOM_TEST_SLEEP", "20ms")
	dir := t.TempDir()
	t.Setenv("KVLOOM_TEST_UUID", "ctrl-c-"+fmt.Sprint(os.Getpid()))
	child, err := exec.LookPath("kvloom-fake-child")
	if err != nil {
		t.Fatal(err)
	}
	tool, err := exec.LookPath("kvloom")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool, "tune", "smollm2-135m", "--only", "page_select", "--child", child, "--db", filepath.Join(dir, "t.db"), "--out", filepath.Join(dir, "t.kvb"))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	var text strings.Builder
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<24) // a crash may tell much in one line
	for n := 0; lines.Scan(); n++ {
		fmt.Fprintln(&text, lines.Text())
		if n == 3 {
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(text.String(), "the same command resumes at the next trial") {
		t.Fatalf("%v\n%s%s", err, &text, &stdout)
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, "t.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if trials, err := db.Trials(t.Context(), store.Filter{}); err != nil || len(trials) < 3 || len(trials) > 12 {
		t.Errorf("%d trials, %v; want the few before the stop", len(trials), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "t.kvb")); err != nil {
		t.Error(err)
	}
}

// Three models share 25 minutes over several runs; what one leaves the next may have, and none gets time that is spent.
func TestShareOfBudget(t *testing.T) {
	const budget = 25 * time.Minute
	tests := []struct {
		name, reason string
		spent        []float64
		i            int
		want         time.Duration
	}{
		{"first of three", "a third", []float64{0, 0, 0}, 0, budget / 3},
		{"second after the first", "half of what is left", []float64{500, 0, 0}, 1, 500 * time.Second},
		{"last", "all that is left", []float64{500, 300, 0}, 2, 700 * time.Second},
		{"resumed", "its own time counts", []float64{200, 0, 0}, 0, budget / 3},
		{"resumed late", "the others first", []float64{800, 0, 0}, 0, 800 * time.Second},
		{"resumed in the second", "as much as the third gets", []float64{500, 400, 0}, 1, 500 * time.Second},
		{"resumed beyond", "a level between those that spent most", []float64{600, 500, 100}, 1, 500 * time.Second},
		{"spent", "nothing more than it had", []float64{800, 600, 200}, 2, 200 * time.Second},
	}
	for _, tt := range tests {
		if got := shareOf(budget, tt.spent, tt.i); got != tt.want {
			t.Errorf("%s: %v, want %v: %s", tt.name, got, tt.want, tt.reason)
		}
	}
}

// Candidates can be compiled beforehand, without a GPU.
func TestTuneCompile(t *testing.T) {
	nvrtctest.Compiler(t)
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%d kernels compiled, 0 refused", len(plan.New(spec, plan.Targets["sm_90a"]).Of(plan.DropPool).Candidates))
	if got := command(t, "tune", "smollm2-135m", "--compile", "--only", "drop_pool"); !strings.Contains(got, want) {
		t.Errorf("%s; want %s", got, want)
	}
}

// --out is a file, or a folder for one bundle a model.
func TestBundleFile(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct{ out, want string }{
		{"", "m.kvb"}, {"x.kvb", "x.kvb"}, {dir, filepath.Join(dir, "m.kvb")}, {filepath.Join(dir, "new") + "/", filepath.Join(dir, "new", "m.kvb")},
	} {
		if got := (&TuneCmd{Out: tt.out}).bundleFile("m"); got != tt.want {
			t.Errorf("--out %q: %s, want %s", tt.out, got, tt.want)
		}
	}
	several := []string{"smollm2-135m", "llama-3.1-8b"}
	if _, err := (&TuneCmd{Models: several, Out: "x.kvb"}).specs(); err == nil || !strings.Contains(err.Error(), "name a folder (x.kvb/)") {
		t.Errorf("one file for two models: %v", err)
	}
	if list, err := (&TuneCmd{Models: several, Out: dir}).specs(); err != nil || len(list) != 2 {
		t.Errorf("a folder for two models: %d, %v", len(list), err)
	}
}

// An exhaustive search is not ended by what ends others.
func TestExhaustiveIsWhole(t *testing.T) {
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	c := TuneCmd{Trials: 300, Target: 0.01}
	tools := &tuneTools{strategy: search.Whole{}, compiler: nvrtctest.Compiler(t)}
	if o := c.tuner(tools, spec, 0).Options; o.Evaluations != 0 || o.Target != 0 || o.Budget != 0 {
		t.Errorf("exhaustive: %+v", o)
	}
	tools.strategy, c.Budget = search.Default{}, time.Minute
	if o := c.tuner(tools, spec, 0).Options; o.Evaluations != 300 || o.Target != 0.01 || o.Budget == 0 {
		t.Errorf("default: %+v; a share of 0 is a budget that is spent", o)
	}
}
