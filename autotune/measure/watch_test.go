package measure

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/runtime/nvml"
)

// Windows under throttling are dropped and measured again, a bounded number of times; what was seen is kept beside the samples.
func TestThrottledWindows(t *testing.T) {
	const power = nvml.Reasons(1 << 2)
	ok, hot := nvml.Status{SMClockMHz: 1980, PowerWatts: 400}, nvml.Status{SMClockMHz: 1200, PowerWatts: 700, Reasons: power}
	busy := ok
	busy.Processes = []nvml.Process{{PID: 4_000_001}, {PID: 4_000_002}}
	tests := []struct {
		name, reason string
		readings     []nvml.Status // before, after, before, ...; the last one stays
		measured     int
		want         store.Conditions
	}{
		{"calm", "one window", []nvml.Status{ok}, 1, store.Conditions{SMClockMHz: 1980, PowerWatts: 400}},
		{"throttled once", "the window is dropped and measured again", []nvml.Status{ok, hot, ok}, 2, store.Conditions{SMClockMHz: 1980, PowerWatts: 400, Dropped: 1}},
		{"throttled before", "also when it was over by the end", []nvml.Status{hot, ok, ok}, 2, store.Conditions{SMClockMHz: 1980, PowerWatts: 400, Dropped: 1}},
		{"throttled for good", "the retries are bounded, and the samples are marked", []nvml.Status{hot}, throttledRetries + 1,
			store.Conditions{SMClockMHz: 1200, PowerWatts: 700, Reasons: "software power cap", Dropped: throttledRetries, Throttled: true}},
		{"not alone", "one of two unknown processes is ourselves under the host's pid", []nvml.Status{busy}, 1,
			store.Conditions{SMClockMHz: 1980, PowerWatts: 400, Others: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reading, measured := 0, 0
			c := Child{Watch: func() (nvml.Status, error) {
				s := tt.readings[min(reading, len(tt.readings)-1)]
				reading++
				return s, nil
			}}
			var got store.Conditions
			if err := c.window(t.Context(), func() error { measured++; return nil }, &got); err != nil {
				t.Fatal(err)
			}
			if measured != tt.measured {
				t.Errorf("measured %d times, want %d: %s", measured, tt.measured, tt.reason)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, d)
			}
		})
	}
	blind := Child{Watch: func() (nvml.Status, error) { return hot, errors.New("lost") }}
	var got store.Conditions
	if err := blind.window(t.Context(), func() error { return nil }, &got); err != nil || got != (store.Conditions{}) {
		t.Errorf("a GPU that cannot be watched is measured all the same: %v, %+v", err, got)
	}
	siblings := Child{siblings: 1, Watch: func() (nvml.Status, error) { return busy, nil }}
	if err := siblings.window(t.Context(), func() error { return nil }, &got); err != nil || got.Others != 0 {
		t.Errorf("a child of the same tuner counts as a stranger: %v, %+v", err, got)
	}
	broken := errors.New("broken")
	if err := blind.window(t.Context(), func() error { return broken }, &got); !errors.Is(err, broken) {
		t.Errorf("an error of the measurement: %v", err)
	}
}
