package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// process runs kvloom as a process of its own; kill, where positive, ends it with SIGKILL after so many trials.
func process(t *testing.T, board string, kill int, args ...string) (stderr string, err error) {
	t.Helper()
	tool, err := exec.LookPath("kvloom")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(tool, args...)
	cmd.Env = append(os.Environ(), "KVLOOM_TEST_UUID="+board+fmt.Sprint(os.Getpid()), "KVLOOM_TEST_SLEEP=5ms")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	timer := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var text strings.Builder
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<24)
	for trials := 0; lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		if strings.Contains(lines.Text(), "page_select ") {
			if trials++; trials == kill {
				_ = cmd.Process.Kill()
			}
		}
	}
	return text.String(), cmd.Wait()
}

func tuneArgs(t *testing.T, dir string) []string {
	t.Helper()
	child, err := exec.LookPath("kvloom-fake-child")
	if err != nil {
		t.Fatal(err)
	}
	return []string{"tune", "smollm2-135m", "--only", "page_select", "--child", child, "--db", filepath.Join(dir, "t.db"), "--out", filepath.Join(dir, "t.kvb")}
}

// C7: killed with SIGKILL twice, in the search and later, and resumed: no trial is lost or repeated, and the GPU's lock is free at once.
func TestTuneKilledTwice(t *testing.T) {
	nvrtctest.Compiler(t)
	dir := t.TempDir()
	args := tuneArgs(t, dir)
	for _, after := range []int{3, 4} {
		var exit *exec.ExitError
		if text, err := process(t, "killed", after, args...); !errors.As(err, &exit) {
			t.Fatalf("not killed: %v\n%s", err, text)
		}
	}
	text, err := process(t, "killed", 0, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, "t.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	trials, err := db.Trials(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	points, runs := map[string]int{}, map[int64]int{}
	for _, tr := range trials {
		points[fmt.Sprint(tr.Context, tr.Batch, tr.Candidate.ID())]++
		runs[tr.Run]++
	}
	if len(points) != len(trials) || len(trials)%3 != 0 || len(runs) != 3 || runs[1] < 3 || runs[2] < 4 {
		t.Errorf("%d trials of %d points, by run %v; want every candidate once at 3 workloads, those of the killed runs kept", len(trials), len(points), runs)
	}
	if faults, err := db.Check(t.Context()); err != nil || len(faults) > 0 {
		t.Errorf("%v %q", err, faults)
	}
}

// C6: two tuners of two boards into one database, read by four others all the while: nobody hears of a lock.
func TestTwoTunersAndFourReaders(t *testing.T) {
	nvrtctest.Compiler(t)
	dir := t.TempDir()
	var tuners, readers sync.WaitGroup
	over := make(chan struct{})
	said := make(chan string, 64)
	for _, board := range []string{"one", "two"} {
		tuners.Go(func() {
			args := append(tuneArgs(t, dir), "--seed", "7")
			args[len(args)-3] = filepath.Join(dir, board+".kvb")
			if text, err := process(t, board, 0, args...); err != nil {
				said <- fmt.Sprintf("tuner %s: %v\n%s", board, err, text)
			}
		})
	}
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(30 * time.Millisecond):
				}
				if text, err := process(t, "", 0, "db", "show", filepath.Join(dir, "t.db")); err != nil && !strings.Contains(text, "does not exist") && !strings.Contains(text, "holds no trials") {
					said <- fmt.Sprintf("reader: %v\n%s", err, text)
				}
			}
		})
	}
	tuners.Wait()
	close(over)
	readers.Wait()
	close(said)
	for s := range said {
		t.Error(s)
	}
}
