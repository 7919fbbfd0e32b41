// Package devices turns the --device flag of the tools into a device.
package devices

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim"
)

// Help describes the flag's values.
const Help = "auto, cuda, cuda:N or sim"

// Choice is an opened device, and why it was taken.
type Choice struct {
	device.Device
	Why string // "cuda:0, NVIDIA H200: the first GPU", "the simulator: no GPU here (...)"
}

// backends are what Open opens; tests replace them.
type backends struct {
	cuda func(ordinal int) (device.Device, error)
	sim  func() (device.Device, error)
}

var real = backends{
	cuda: cuda.Open,
	sim:  func() (device.Device, error) { return sim.New(sim.Config{}) },
}

// Open opens the device that a flag names. auto is the first GPU where there is one that works, else the simulator.
func Open(flag string) (Choice, error) { return real.open(flag) }

func (b backends) open(flag string) (Choice, error) {
	switch {
	case flag == "auto" || flag == "":
		d, err := b.cuda(0)
		if err == nil {
			return Choice{d, "cuda:0, " + d.Info().Name + ": the first GPU"}, nil
		}
		var none *device.Unavailable
		if !errors.As(err, &none) {
			// A GPU that is there and broken must not be hidden behind a simulator that works.
			return Choice{}, fmt.Errorf("%w; use --device sim to run on the simulator", err)
		}
		s, simErr := b.sim()
		if simErr != nil {
			return Choice{}, errors.Join(err, simErr)
		}
		reason, _, _ := strings.Cut(none.Reason, " (") // the loader's own words are for kvloom doctor
		return Choice{s, "the simulator: no GPU to use here (" + reason + ")"}, nil
	case flag == "sim":
		d, err := b.sim()
		return Choice{d, "the simulator, as asked"}, err
	case flag == "cuda" || strings.HasPrefix(flag, "cuda:"):
		ordinal := 0
		if number, ok := strings.CutPrefix(flag, "cuda:"); ok {
			n, err := strconv.ParseUint(number, 10, 16)
			if err != nil {
				return Choice{}, fmt.Errorf("device %q: %q is no device number; use %s", flag, number, Help)
			}
			ordinal = int(n)
		}
		d, err := b.cuda(ordinal)
		if err != nil {
			return Choice{}, fmt.Errorf("device %s: %w", flag, err)
		}
		return Choice{d, fmt.Sprintf("cuda:%d, %s, as asked", ordinal, d.Info().Name)}, nil
	}
	return Choice{}, fmt.Errorf("device %q; use %s", flag, Help)
}
