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

// Check is measure.Check by way of internal/verify: the family's quick cases with fresh inputs, poisoned outputs and guard bands.
func Check(ctx context.Context, dev device.Device, s *specs.Spec, c plan.Candidate, fn device.Function, seed uint64) (measure.Checked, error) {
	return check(ctx, dev, s, c, fn, verify.Options{Seed: seed, Workloads: "quick", Candidates: "default"})
}

// CheckAll is the check of leaders: every case of the family besides the long ones, so that none is chosen that is wrong at an edge only.
func CheckAll(ctx context.Context, dev device.Device, s *specs.Spec, c plan.Candidate, fn device.Function, seed uint64) (measure.Checked, error) {
	return check(ctx, dev, s, c, fn, verify.Options{Seed: seed, Workloads: "small", Candidates: "default"})
}

func check(ctx context.Context, dev device.Device, s *specs.Spec, c plan.Candidate, fn device.Function, o verify.Options) (out measure.Checked, err error) {
	env := verify.NewEnv(dev, func(plan.Candidate) (device.Function, error) { return fn, nil })
	defer func() { err = errors.Join(err, env.Close()) }()
	results, err := verify.Check(ctx, env, s, c, o)
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
