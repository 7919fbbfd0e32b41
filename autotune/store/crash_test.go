//go:build linux

package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain is also the writer that the tests kill, or starve of disk.
func TestMain(m *testing.M) {
	path := os.Getenv("KVLOOM_TEST_WRITER")
	if path == "" {
		os.Exit(m.Run())
	}
	if limit := os.Getenv("KVLOOM_TEST_FSIZE"); limit != "" {
		var bytes uint64
		fmt.Sscan(limit, &bytes)       //nolint:errcheck // of the test
		signal.Ignore(syscall.SIGXFSZ) // the write fails instead
		l := syscall.Rlimit{Cur: bytes, Max: bytes}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	if err := writeTrials(path); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// writeTrials stores trials after those that are there, and says each number once it is stored.
func writeTrials(path string) error {
	ctx := context.Background()
	db, err := Create(ctx, path)
	if err != nil {
		return err
	}
	run, err := db.BeginRun(ctx, "m", "h", environment(), nil)
	if err != nil {
		return err
	}
	known, err := db.Trials(ctx, Filter{})
	if err != nil {
		return err
	}
	fmt.Println("started", len(known))
	for i := len(known); ; i++ {
		t := trial(run, i)
		t.Message = strings.Repeat("x", 500)
		if isNew, err := db.Put(ctx, t); err != nil || !isNew {
			return errors.Join(err, ifTrue(!isNew, fmt.Errorf("trial %d was there", i)))
		}
		fmt.Println("stored", i)
	}
}

// writer runs the child until it was killed after some time (0: until it ends), and returns the last trial it said was stored and the
// error it told.
func writer(t *testing.T, path string, after time.Duration, env ...string) (stored int, told string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "KVLOOM_TEST_WRITER="+path), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stored = -1
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "started":
			fmt.Sscan(rest, &stored) //nolint:errcheck // of the test
			stored--
			if after > 0 {
				time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
			}
		case "stored":
			fmt.Sscan(rest, &stored) //nolint:errcheck // of the test
		case "error":
			told = rest
		}
	}
	_ = cmd.Wait() // killed, or it told its error
	return stored, told
}

// C7: a writer killed at 50 random moments loses at most the trial in flight, and the file is whole each time.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	r := rand.New(rand.NewPCG(7, 7))
	moments := 50
	if testing.Short() {
		moments = 5
	}
	for i := range moments {
		stored, told := writer(t, path, time.Duration(1+r.IntN(25_000))*time.Microsecond)
		if told != "" {
			t.Fatalf("kill %d: %s", i, told)
		}
		db, err := Create(t.Context(), path)
		if err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		trials, err := db.Trials(t.Context(), Filter{})
		if n := len(trials); err != nil || n < stored+1 || n > stored+2 {
			t.Fatalf("kill %d: %d trials, %v; the writer said that it stored %d", i, n, err, stored+1)
		}
		if i%10 == 9 {
			if faults, err := db.Check(t.Context()); err != nil || len(faults) > 0 {
				t.Fatalf("kill %d: %v %q", i, err, faults)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that takes no more says so with the remedy; what was stored before stays, and the next run goes on.
func TestFullDisk(t *testing.T) {
	tests := []struct {
		name, want string
		env        func(t *testing.T) (path string, env []string)
	}{
		{"file size limit", "the disk did not take it", func(t *testing.T) (string, []string) {
			return filepath.Join(t.TempDir(), "trials.db"), []string{"KVLOOM_TEST_FSIZE=300000"}
		}},
		{"small disk", "free space on its disk", func(t *testing.T) (string, []string) {
			return filepath.Join(tmpfs(t, "size=400k"), "trials.db"), nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path, env := tt.env(t)
			stored, told := writer(t, path, 0, env...)
			if !strings.Contains(told, tt.want) || !strings.Contains(told, path) || stored < 10 {
				t.Fatalf("after %d trials: %q; want it to name the file and say %q", stored+1, told, tt.want)
			}
			db, err := Open(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			trials, err := db.Trials(t.Context(), Filter{})
			if err != nil || len(trials) != stored+1 {
				t.Errorf("%d trials, %v; want the %d that were stored", len(trials), err, stored+1)
			}
		})
	}
}

// tmpfs mounts a small file system, where the machine lets us.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("mounting a tmpfs needs privileges that are not here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestReadOnlyMedium(t *testing.T) {
	dir := tmpfs(t, "size=4m")
	path := filepath.Join(dir, "trials.db")
	db, err := Create(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	run, err := db.BeginRun(t.Context(), "m", "h", environment(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Put(t.Context(), trial(run, 1)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	remount := func(flags uintptr) {
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(syscall.MS_RDONLY)
	if _, err := Create(t.Context(), path); err == nil || !strings.Contains(err.Error(), "must be writable") || !strings.Contains(err.Error(), path) {
		t.Errorf("writing: %v; want the file and the remedy", err)
	}
	ro, err := Open(t.Context(), path)
	if err != nil {
		t.Fatalf("reading from a read-only medium: %v", err)
	}
	if trials, err := ro.Trials(t.Context(), Filter{}); err != nil || len(trials) != 1 {
		t.Errorf("%d trials, %v; want 1", len(trials), err)
	}
	ro.Close()
}

// One tuner a GPU: the second is refused by the first one's name, or waits; a killed one's lock is free.
func TestDeviceLock(t *testing.T) {
	dir := t.TempDir()
	first, err := LockDevice(t.Context(), dir, "GPU-1", "kvloom tune a", 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = LockDevice(t.Context(), dir, "GPU-1", "kvloom tune b", 0, nil)
	var busy *BusyError
	if !errors.As(err, &busy) || busy.Holder.PID != os.Getpid() || !strings.Contains(err.Error(), "kvloom tune a (pid") || !strings.Contains(err.Error(), "GPU-1") {
		t.Errorf("second tuner: %v; want the first by name", err)
	}
	other, err := LockDevice(t.Context(), dir, "GPU-2", "kvloom tune b", 0, nil)
	if err != nil {
		t.Errorf("another GPU: %v", err)
	} else if err := other.Release(); err != nil {
		t.Error(err)
	}
	waits := 0
	time.AfterFunc(250*time.Millisecond, func() { _ = first.Release() })
	second, err := LockDevice(t.Context(), dir, "GPU-1", "kvloom tune b", 10*time.Second, func(*BusyError) { waits++ })
	if err != nil || waits != 1 {
		t.Fatalf("waiting: %v, told %d times; want the lock once it is free", err, waits)
	}
	if _, err := LockDevice(t.Context(), dir, "GPU-1", "c", 300*time.Millisecond, nil); !errors.As(err, &busy) || busy.Holder.Doing != "kvloom tune b" {
		t.Errorf("waiting in vain: %v", err)
	}
	if err := second.Release(); err != nil {
		t.Fatal(err)
	}
}
