package cli

import (
	"errors"
	"strings"

	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/sim"
)

// kernels are a device with its loader, as kvloom quality runs them.
type kernels struct {
	*verify.Env
	dev    devices.Choice
	loader *verify.Loader
	name   string
}

func openKernels(ctx *Context, device string) (*kernels, error) {
	compiler, err := nvrtc.Open()
	if err != nil {
		return nil, err
	}
	dev, err := devices.OpenWith(device, sim.Config{})
	if err != nil {
		return nil, err
	}
	k := &kernels{dev: dev, loader: verify.NewLoader(ctx, dev, compiler), name: dev.Info().Name}
	if strings.TrimSpace(k.name) == "" {
		k.name = dev.Info().Backend
	}
	k.Env = verify.NewEnv(dev, k.loader.Compile)
	return k, nil
}

// Close frees the device.
func (k *kernels) Close() error {
	return errors.Join(k.Env.Close(), k.loader.Unload(), k.dev.Close())
}
