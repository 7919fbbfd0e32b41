package measure

import (
	"context"
	"os"
	"time"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/runtime/nvml"
)

// throttledRetries bounds how often a window is measured again because the GPU was throttled.
const throttledRetries = 3

// window measures, and reads the GPU before and after. Where it was throttled the window is dropped and measured again after a pause, a
// bounded number of times; the last one is kept and marked. A GPU that cannot be watched is measured all the same.
func (c *Child) window(ctx context.Context, measure func() error, cond *store.Conditions) error {
	for attempt := 0; ; attempt++ {
		seen := store.Conditions{Dropped: attempt}
		throttled := c.look(&seen)
		if err := measure(); err != nil {
			return err
		}
		throttled = c.look(&seen) || throttled
		seen.Throttled = throttled
		*cond = seen
		if !throttled || attempt == throttledRetries {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.Pause << attempt):
		}
	}
}

// look adds a reading to the conditions of a window.
func (c *Child) look(seen *store.Conditions) (throttled bool) {
	if c.Watch == nil {
		return false
	}
	s, err := c.Watch()
	if err != nil {
		return false
	}
	lowest := func(old, now int) int {
		if old == 0 {
			return now
		}
		return min(old, now)
	}
	seen.SMClockMHz, seen.MemClockMHz = lowest(seen.SMClockMHz, s.SMClockMHz), lowest(seen.MemClockMHz, s.MemClockMHz)
	seen.PowerWatts, seen.Celsius = max(seen.PowerWatts, s.PowerWatts), max(seen.Celsius, s.Celsius)
	if s.Reasons != 0 {
		seen.Reasons = s.Reasons.String()
	}
	seen.Others = max(seen.Others, others(s, os.Getpid())-c.siblings)
	return s.Reasons.Throttled()
}

// others counts the processes that are not ourselves. In a container NVML tells pids of the host; then one of them is taken for us.
func others(s nvml.Status, pid int) int {
	n := len(s.Others(pid))
	if n == len(s.Processes) && n > 0 {
		n--
	}
	return n
}
