package gputest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/device"
)

// spy notes how a test would have ended.
type spy struct {
	testing.TB
	how string
}

func (s *spy) Helper() {}
func (s *spy) Fatalf(format string, args ...any) {
	s.how = "fatal: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (s *spy) Skipf(format string, args ...any) {
	s.how = "skip: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestMissing(t *testing.T) {
	none := &device.Unavailable{What: "CUDA driver", Reason: "libcuda.so.1 not found", Remedy: "install it"}
	for _, tc := range []struct {
		name, reason string
		require      string
		err          error
		want         string
	}{
		{"no GPU", "a skip says why", "", none, "skip: needs a GPU: CUDA driver: libcuda.so.1 not found"},
		{"no GPU in the GPU lane", "a skip there would look green", "1", none, "fatal: KVLOOM_REQUIRE_GPU=1, and: CUDA driver"},
		{"broken GPU", "a fault is not an absence", "", errors.New("cuDeviceGetName: CUDA_ERROR_UNKNOWN"), "fatal: open the GPU: cuDeviceGetName"},
		{"wrapped", "the type counts, not the wrapping", "", fmt.Errorf("open: %w", none), "skip: needs a GPU"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(requireVariable, tc.require)
			s := &spy{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				missing(s, tc.err)
			}()
			<-done
			if !strings.HasPrefix(s.how, tc.want) {
				t.Errorf("%s: ended with %q, want %q", tc.reason, s.how, tc.want)
			}
		})
	}
}
