//go:build linux

package nvrtc_test

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// handler is the kernel's struct sigaction of 64-bit Linux, as far as it is the same everywhere.
type handler struct {
	function, flags uintptr
	rest            [16]uintptr
}

func handlerOf(t *testing.T, s syscall.Signal) handler {
	t.Helper()
	var h handler
	if _, _, errno := syscall.Syscall6(syscall.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&h)), 8, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	return h
}

// NVRTC changes the handlers of SIGINT and SIGTERM while it compiles, and puts them back without SA_ONSTACK: a Ctrl-C ended the process with
// status 4, or crashed the Go runtime. Signals that arrive meanwhile have to reach whoever asked for them.
func TestSignalsWhileCompiling(t *testing.T) {
	c, err := nvrtc.New(nvrtctest.Compiler(t).Toolchain(), nil) // no cache: it shall compile
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan os.Signal, 1000)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(got)
	before := []handler{handlerOf(t, syscall.SIGINT), handlerOf(t, syscall.SIGTERM)}
	over := make(chan struct{})
	var group sync.WaitGroup
	sent := 0
	group.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(2 * time.Millisecond):
				_ = syscall.Kill(os.Getpid(), []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[sent%2])
				sent++
			}
		}
	})
	var compiling sync.WaitGroup
	for i := range 2 {
		compiling.Go(func() {
			src := axpy("sm_90a")
			src.Text += strings.Repeat(" ", i)
			m, err := c.Compile(context.Background(), src, nvrtc.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			for _, w := range m.Warnings {
				t.Error(w)
			}
		})
	}
	compiling.Wait()
	close(over)
	group.Wait()
	if sent == 0 || len(got) == 0 {
		t.Fatalf("%d signals sent, %d arrived", sent, len(got))
	}
	for i, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if now := handlerOf(t, s); now != before[i] {
			t.Errorf("%v: handler %#x with flags %#x, before it was %#x with %#x", s, now.function, now.flags, before[i].function, before[i].flags)
		}
	}
}
