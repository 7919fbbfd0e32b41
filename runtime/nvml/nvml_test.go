package nvml

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReasons(t *testing.T) {
	tests := []struct {
		name      string
		in        Reasons
		text      string
		throttled bool
		reason    string
	}{
		{"none", 0, "none", false, "full clocks"},
		{"idle", 1, "idle", false, "an idle GPU is not held back"},
		{"application clocks", 2, "application clocks", false, "someone chose the clock: steady, so measurable"},
		{"power cap", 4, "software power cap", true, "the board slows itself"},
		{"heat", 32 | 64, "software thermal slowdown, hardware thermal slowdown", true, "cooling"},
		{"sync boost", 16, "sync boost", false, "a group's common clock"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.text, tt.in.String()); d != "" {
				t.Error(d)
			}
			if got := tt.in.Throttled(); got != tt.throttled {
				t.Errorf("throttled %v, want %v: %s", got, tt.throttled, tt.reason)
			}
		})
	}
}

func TestOthers(t *testing.T) {
	s := Status{Processes: []Process{{1, 10}, {2, 20}}}
	if d := cmp.Diff([]Process{{2, 20}}, s.Others(1)); d != "" {
		t.Error(d)
	}
}
