package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvml"
	"github.com/kvloom/kvloom/specs"
)

// Check verifies a loaded candidate against float64 before it may be timed. A wrong candidate is a result (a positive excess or a
// message), not an error; the error is the device's.
type Check func(ctx context.Context, dev device.Device, s *specs.Spec, c plan.Candidate, fn device.Function, seed uint64) (Checked, error)

// Checked is what a check found.
type Checked struct {
	MaxError, Bound float64
	Failure         string // empty: right
}

// Child measures what it is asked for, one request at a time, until its input ends. A sticky fault of a candidate is answered and then
// ends the child, for nothing works in its context any more.
type Child struct {
	Open  func() (device.Device, error)
	Check Check // the quick one, before a candidate is timed
	// Thorough is the check of leaders; nil: Check.
	Thorough Check
	// Watch reads the GPU's clocks and throttle reasons; nil where NVML is not to be had. Pause is how long a throttled GPU is left alone.
	Watch func() (nvml.Status, error)
	Pause time.Duration
	dev   device.Device
	rigs  []*Rig // the last one used is last

	siblings int // of the request under way
}

// Serve reads requests and writes responses, one JSON line each.
func (c *Child) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	w := json.NewEncoder(out)
	dev, err := c.Open()
	if err != nil {
		return errors.Join(err, w.Encode(Hello{Error: err.Error()}))
	}
	c.dev = dev
	if err := w.Encode(Hello{Info: dev.Info()}); err != nil {
		return err
	}
	r := bufio.NewReaderSize(in, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var req Request
		if err := json.Unmarshal(line, &req); err != nil {
			return fmt.Errorf("measuring child: request: %w", err)
		}
		resp := c.answer(ctx, req)
		if err := w.Encode(resp); err != nil {
			return err
		}
		if store.Class(resp.Class) == store.Fault {
			return fmt.Errorf("measuring child: the context is lost: %s", resp.Message)
		}
	}
}

func (c *Child) answer(ctx context.Context, req Request) Response {
	resp, err := c.measure(ctx, req)
	if err == nil {
		return resp
	}
	resp.Message = err.Error()
	resp.Class = string(store.LaunchError)
	var sticky interface{ Sticky() bool }
	if errors.As(err, &sticky) && sticky.Sticky() {
		resp.Class = string(store.Fault)
	}
	return resp
}

func (c *Child) measure(ctx context.Context, req Request) (resp Response, err error) {
	c.siblings = req.Siblings
	m, err := c.dev.Load(req.Image)
	if err != nil {
		return resp, err
	}
	defer func() { err = errors.Join(err, m.Unload()) }()
	fn, err := launch.Function(m, req.Candidate.Entry, &req.Candidate.Geometry)
	if err != nil { // what the driver refuses is no wrong result of a check
		return resp, err
	}
	if !req.SkipCheck {
		check := c.Check
		if req.Thorough && c.Thorough != nil {
			check = c.Thorough
		}
		checked, err := check(ctx, c.dev, &req.Spec, req.Candidate, fn, req.CheckSeed)
		if err != nil {
			return resp, err
		}
		resp.MaxError, resp.Bound = checked.MaxError, checked.Bound
		if checked.Failure != "" {
			resp.Class, resp.Message = string(store.Wrong), checked.Failure
			return resp, nil
		}
	}
	if req.Thorough || req.CheckOnly {
		resp.Class = string(store.OK)
		return resp, nil
	}
	rig, step, err := c.stepFor(req, fn)
	if err != nil {
		return resp, err
	}
	defer func() { err = errors.Join(err, rig.release(step)) }()
	t := req.timing()
	err = c.window(ctx, func() (err error) {
		var class store.Class
		resp.Samples, class, err = rig.Time(step, t)
		resp.Class = string(class)
		return err
	}, &resp.Conditions)
	return resp, err
}

// timing is how long a request is measured.
func (r Request) timing() Timing {
	t := Usual
	switch {
	case r.Samples > 0: // one of many rounds: short
		t.Least, t.Most, t.GraphUS = r.Samples, r.Samples, t.GraphUS/2
		return t
	case r.Precision > 0:
		t.Width = r.Precision
	}
	if t.Width > Usual.Width {
		t.Least, t.GraphUS = coarseLeast, t.GraphUS/2
	}
	t.CutUS = 3 * r.BestUS
	return t
}

// coarseLeast samples have an interval, and are enough where a wide one will do.
const coarseLeast = 7

// rigsKept is how many workloads' buffers a child keeps: a spec has three or four, whose trials come by turns.
const rigsKept = 4

// rigFor returns the buffers of a workload, those of an earlier trial where they are kept.
func (c *Child) rigFor(s *specs.Spec, w specs.Workload, warm bool) (*Rig, error) {
	at := slices.IndexFunc(c.rigs, func(r *Rig) bool { return r.Workload == w && r.Spec.Name == s.Name && r.Warm == warm })
	if at >= 0 {
		r := c.rigs[at]
		c.rigs = append(slices.Delete(c.rigs, at, at+1), r)
		return r, nil
	}
	if err := c.dropRigs(rigsKept - 1); err != nil {
		return nil, err
	}
	rig, err := NewRig(c.dev, s, w)
	if err != nil {
		if rig != nil {
			err = errors.Join(err, rig.Close())
		}
		return nil, err
	}
	rig.Warm = warm
	c.rigs = append(c.rigs, rig)
	return rig, nil
}

// dropRigs closes the rigs that were not used for the longest time, all but so many.
func (c *Child) dropRigs(but int) error {
	for len(c.rigs) > but {
		r := c.rigs[0]
		c.rigs = c.rigs[1:]
		if err := r.Close(); err != nil {
			return err
		}
	}
	return nil
}

// stepFor sets a candidate up on the buffers of its workload. Where there is no room for them, those of all workloads are given up first.
func (c *Child) stepFor(req Request, fn device.Function) (rig *Rig, step *Step, err error) {
	for _, last := range []bool{false, true} {
		if rig, err = c.rigFor(&req.Spec, req.Workload, req.Warm); err == nil {
			step, err = rig.Step(req.Work, req.Candidate, fn)
		}
		if err == nil || last || !noMemory(err) {
			return rig, step, err
		}
		if err := c.dropRigs(0); err != nil {
			return nil, nil, err
		}
	}
	return rig, step, err
}

// noMemory recognises the driver's refusal of an allocation.
func noMemory(err error) bool {
	var e interface{ OutOfMemory() bool }
	return errors.As(err, &e) && e.OutOfMemory()
}
