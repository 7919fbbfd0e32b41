package gputest

import (
	"errors"
	"testing"

	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim"
)

// Sim returns the simulator.
func Sim(tb testing.TB) device.Device {
	tb.Helper()
	dev, err := sim.New(sim.Config{})
	if err != nil {
		tb.Fatalf("open the simulator: %v", err)
	}
	closeAfter(tb, dev)
	return dev
}

// Devices returns every device usable here, the simulator first and a GPU after it, for tests that hold on all of them. With
// KVLOOM_REQUIRE_GPU=1 a missing GPU is fatal.
func Devices(tb testing.TB) []device.Device {
	tb.Helper()
	devs := []device.Device{Sim(tb)}
	gpu, err := cuda.Open(0)
	var none *device.Unavailable
	switch {
	case err == nil:
		closeAfter(tb, gpu)
		devs = append(devs, gpu)
	case required() || !errors.As(err, &none):
		missing(tb, err)
	default:
		tb.Logf("simulator only: %v", err)
	}
	return devs
}
