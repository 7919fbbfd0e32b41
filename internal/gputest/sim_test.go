package gputest

import "testing"

func TestDevicesHaveBackends(t *testing.T) {
	for _, d := range Devices(t) {
		if b := d.Info().Backend; b != "sim" && b != "cuda" {
			t.Errorf("backend %q", b)
		}
	}
}
