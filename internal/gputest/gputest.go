// Package gputest gives tests a device, or an honest reason why there is none.
package gputest

import (
	"errors"
	"os"
	"testing"

	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
)

// requireVariable makes a missing GPU fatal, so that the GPU lane cannot go green by skipping.
const requireVariable = "KVLOOM_REQUIRE_GPU"

// required tells whether a skip for want of a GPU is forbidden.
func required() bool { return os.Getenv(requireVariable) == "1" }

// Require returns the first GPU. Without one the test is skipped with the reason, or fails when KVLOOM_REQUIRE_GPU=1.
func Require(tb testing.TB) device.Device {
	tb.Helper()
	dev, err := cuda.Open(0)
	if err != nil {
		missing(tb, err)
	}
	closeAfter(tb, dev)
	return dev
}

// missing ends the test: an error that is no *device.Unavailable is a fault of ours, never a skip.
func missing(tb testing.TB, err error) {
	tb.Helper()
	var none *device.Unavailable
	switch {
	case !errors.As(err, &none):
		tb.Fatalf("open the GPU: %v", err)
	case required():
		tb.Fatalf("%s=1, and: %v", requireVariable, err)
	default:
		tb.Skipf("needs a GPU: %v", err)
	}
}

func closeAfter(tb testing.TB, dev device.Device) {
	tb.Cleanup(func() {
		if err := dev.Close(); err != nil {
			tb.Errorf("close %s: %v", dev.Info().Name, err)
		}
	})
}
