package devices

import (
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/sim"
)

func TestOpenWith(t *testing.T) {
	for _, tc := range []struct {
		name, flag string
		c          sim.Config
		want       string // of the choice or the error
	}{
		{"the sanitizer chooses the simulator", "auto", sim.Config{Sanitize: true}, "alone has what was asked for"},
		{"workers choose it as well", "auto", sim.Config{Workers: 1}, "alone has what was asked for"},
		{"as asked", "sim", sim.Config{Schedule: "random:1"}, "as asked"},
		{"a GPU has no schedule", "cuda", sim.Config{Schedule: "random:1"}, "--device sim"},
		{"a bad schedule", "sim", sim.Config{Schedule: "often"}, "random:SEED"},
		{"nothing special", "vulkan", sim.Config{}, "vulkan"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := OpenWith(tc.flag, tc.c)
			got := c.Why
			if err != nil {
				got = err.Error()
			} else if err := c.Close(); err != nil {
				t.Error(err)
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want it to say %q", got, tc.want)
			}
		})
	}
}
