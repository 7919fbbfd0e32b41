package devices

import (
	"errors"

	"github.com/kvloom/kvloom/runtime/sim"
)

// OpenWith is Open with a configured simulator. A configuration that only the simulator has (the sanitizer, a schedule, counters, workers) makes
// "auto" choose it, and is an error with a GPU.
func OpenWith(flag string, c sim.Config) (Choice, error) { return real.openWith(flag, c) }

func (b backends) openWith(flag string, c sim.Config) (Choice, error) {
	special := c.Sanitize || c.Schedule != "" || c.Count || c.Workers != 0
	switch {
	case !special && flag != "sim":
		return b.open(flag)
	case flag == "auto" || flag == "":
		d, err := sim.New(c)
		return Choice{d, "the simulator, which alone has what was asked for"}, err
	case flag == "sim":
		d, err := sim.New(c)
		return Choice{d, "the simulator, as asked"}, err
	}
	return Choice{}, errors.New("the sanitizer, schedules, counters and workers are the simulator's; use --device sim")
}
