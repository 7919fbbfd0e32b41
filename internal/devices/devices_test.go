package devices

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/device"
)

// named is a device that only has a name.
type named struct {
	device.Device
	name string
}

func (n named) Info() device.Info { return device.Info{Name: n.name} }

func TestOpen(t *testing.T) {
	none := &device.Unavailable{What: "CUDA driver", Reason: "libcuda.so.1 not found", Remedy: "install it"}
	broken := errors.New("cuInit: CUDA_ERROR_UNKNOWN")
	with := func(err error) backends {
		return backends{
			cuda: func(ordinal int) (device.Device, error) {
				if err == nil && ordinal > 1 {
					return nil, errors.New("no such device")
				}
				return named{name: "H200"}, err
			},
			sim: func() (device.Device, error) { return named{name: "simulator"}, nil },
		}
	}
	tests := []struct {
		name, flag string
		cuda       error
		want       string // device's name
		says       string // in Why or in the error
	}{
		{"a GPU", "auto", nil, "H200", "first GPU"},
		{"no flag", "", nil, "H200", "first GPU"},
		{"no driver", "auto", none, "simulator", "libcuda.so.1 not found"},
		{"a broken GPU is not hidden", "auto", broken, "", "--device sim"},
		{"asked for cuda without one", "cuda", none, "", "install it"},
		{"the simulator beside a GPU", "sim", nil, "simulator", "as asked"},
		{"by number", "cuda:1", nil, "H200", "cuda:1"},
		{"no such number", "cuda:7", nil, "", "no such device"},
		{"no number", "cuda:x", nil, "", `"x" is no device number`},
		{"negative", "cuda:-1", nil, "", "no device number"},
		{"unknown", "tpu", nil, "", Help},
	}
	for _, tt := range tests {
		got, err := with(tt.cuda).open(tt.flag)
		text := got.Why
		if err != nil {
			text = err.Error()
		}
		if (tt.want == "") != (err != nil) || !strings.Contains(text, tt.says) {
			t.Errorf("%s: %q, error %v; want it to say %q", tt.name, got.Why, err, tt.says)
			continue
		}
		if err == nil && got.Info().Name != tt.want {
			t.Errorf("%s: device %q, want %q", tt.name, got.Info().Name, tt.want)
		}
	}
}
