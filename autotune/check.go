package autotune

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// driverError begins the driver's names of errors.
const driverError = "CUDA_ERROR_"

// Checker checks kernels on one device after the other, for a measuring child: what it allocates is kept from one kernel to the next. The zero
// value is ready.
type Checker struct {
	dev device.Device
	env *verify.Env
}

// Quick is measure.Check by way of internal/verify: the family's quick cases with fresh inputs, poisoned outputs and guard bands.
func (k *Checker) Quick(ctx context.Context, dev device.Device, s *specs.Spec, c plan.Candidate, fn device.Function, seed uint64) (measure.Checked, error) {
	return k.check(ctx, dev, s, c, fn, verify.Options{Seed: seed, Workloads: "quick", Candidates: "default"})
}

// Whole is the check of leaders: every case of the family besides the long ones, so that none is chosen that is wrong at an edge only. It keeps
// nothing.
func (k *Checker) Whole(ctx context.Context, dev device.Device, s *specs.Spec, c plan.Candidate, fn device.Function, seed uint64) (out measure.Checked, err error) {
	out, err = k.check(ctx, dev, s, c, fn, verify.Options{Seed: seed, Workloads: "small", Candidates: "default"})
	return out, errors.Join(err, k.close())
}

func (k *Checker) close() (err error) {
	if k.env != nil {
		err = k.env.Close()
		k.env = nil
	}
	return err
}

// renew makes an environment ready for a kernel.
func (k *Checker) renew(dev device.Device, fn device.Function) error {
	compile := func(plan.Candidate) (device.Function, error) { return fn, nil }
	if k.env != nil && k.dev == dev {
		return k.env.Renew(compile)
	}
	err := k.close()
	k.dev, k.env = dev, verify.NewEnv(dev, compile)
	return err
}

func (k *Checker) check(ctx context.Context, dev device.Device, s *specs.Spec, c plan.Candidate, fn device.Function, o verify.Options) (out measure.Checked, err error) {
	if err := k.renew(dev, fn); err != nil {
		return out, err
	}
	defer func() {
		if err != nil { // whatever was going on
			err = errors.Join(err, k.close())
		}
	}()
	results, err := verify.Check(ctx, k.env, s, c, o)
	if err != nil {
		return out, err
	}
	worst := -1.0
	for _, r := range results {
		if strings.Contains(r.Failure, driverError) { // the driver refused the kernel, or lost it: no wrong result
			return out, fmt.Errorf("check %s: %s", r.Case, r.Failure)
		}
		if r.Failure != "" && out.Failure == "" {
			out.Failure = fmt.Sprintf("%s, %s: %s", r.Case, r.Metric, r.Failure)
		}
		if r.Bound > 0 && r.MaxError/r.Bound > worst {
			worst = r.MaxError / r.Bound
			out.MaxError, out.Bound = r.MaxError, r.Bound
		}
	}
	return out, nil
}
