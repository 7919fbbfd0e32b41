package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
)

// TestMain is also the measuring child of the tests below: it plays the candidate that the request's key names.
func TestMain(m *testing.M) {
	if os.Getenv("KVLOOM_TEST_CHILD") == "1" {
		fakeChild()
		return
	}
	os.Exit(m.Run())
}

func fakeChild() {
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(Hello{Info: device.Info{Name: "fake"}})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r Request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		switch r.Candidate.Key {
		case "exit":
			fmt.Fprintln(os.Stderr, "candidate called exit")
			os.Exit(7)
		case "hang":
			time.Sleep(time.Hour)
		case "once":
			if err := os.Mkdir(r.Candidate.Entry, 0o700); err == nil {
				os.Exit(5)
			}
			_ = out.Encode(Response{Class: string(store.OK)})
		case "garbage":
			fmt.Println("not json")
		case "fault":
			_ = out.Encode(Response{Class: string(store.Fault), Message: "CUDA_ERROR_ILLEGAL_ADDRESS"})
		default:
			_ = out.Encode(Response{Class: string(store.OK), Samples: []float64{1}})
		}
	}
}

func testHost(t *testing.T, timeout time.Duration) *Host {
	h := &Host{Timeout: timeout, Command: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), "KVLOOM_TEST_CHILD=1")
		return cmd
	}}
	t.Cleanup(h.Close)
	return h
}

// C1: a candidate that faults, hangs or exits costs its child and is recorded; the run goes on.
func TestHostIsolatesCandidates(t *testing.T) {
	h := testHost(t, 700*time.Millisecond)
	tests := []struct {
		key, class, message string
		restarts            int
	}{
		{"good", "ok", "", 0},
		{"exit", "crash", "candidate called exit", 2},
		{"good", "ok", "", 2},
		{"fault", "fault", "CUDA_ERROR_ILLEGAL_ADDRESS", 4},
		{"hang", "hang", "no answer within 700ms", 6},
		{"garbage", "crash", "it answered", 8},
		{"good", "ok", "", 8},
	}
	for i, tt := range tests {
		resp, err := h.Do(t.Context(), Request{Candidate: plan.Candidate{Key: tt.key}})
		if err != nil {
			t.Fatalf("%d %s: %v", i, tt.key, err)
		}
		if resp.Class != tt.class || !strings.Contains(resp.Message, tt.message) {
			t.Errorf("%d %s: got %q %q, want %q with %q", i, tt.key, resp.Class, resp.Message, tt.class, tt.message)
		}
		if h.Restarts != tt.restarts {
			t.Errorf("%d %s: %d restarts, want %d: a candidate is tried once more in a fresh child", i, tt.key, h.Restarts, tt.restarts)
		}
	}
}

// A candidate that is right at the second try is right, and its trial says what happened at the first.
func TestHostTellsOfTheFirstTry(t *testing.T) {
	h := testHost(t, 10*time.Second)
	resp, err := h.Do(t.Context(), Request{Candidate: plan.Candidate{Key: "once", Entry: filepath.Join(t.TempDir(), "tried")}})
	if err != nil || resp.Class != "ok" || !strings.Contains(resp.Message, "at the first try: crash: it ended without an answer: exit status 5") {
		t.Errorf("%+v, %v", resp, err)
	}
}

func TestHostWithoutChild(t *testing.T) {
	h := &Host{Timeout: time.Second, Command: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "/nonexistent/kvloom") }}
	if _, err := h.Do(t.Context(), Request{}); err == nil || !strings.Contains(err.Error(), "measuring child") {
		t.Errorf("got %v; want an error that names the measuring child", err)
	}
}
