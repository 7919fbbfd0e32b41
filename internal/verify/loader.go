package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

// Loader compiles candidates with NVRTC and loads them into one device. Its Compile is an Env's.
type Loader struct {
	ctx  context.Context
	dev  device.Device
	code *nvrtc.Once

	mu      sync.Mutex
	modules []device.Module
}

// NewLoader makes a loader. ctx ends its compilations.
func NewLoader(ctx context.Context, dev device.Device, compiler *nvrtc.Compiler) *Loader {
	return &Loader{ctx: ctx, dev: dev, code: nvrtc.NewOnce(func(ctx context.Context, src render.Source) (*nvrtc.Module, error) {
		return compiler.Compile(ctx, src, nvrtc.Options{})
	})}
}

// Prefetch compiles candidates ahead, in their order, on that many goroutines, and returns at once. Errors show when Compile asks
// for the candidate. wait blocks until all are done: call it before the loader's context ends.
func (l *Loader) Prefetch(candidates []plan.Candidate, workers int) (wait func()) {
	work := make(chan plan.Candidate)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for c := range work {
				if src, err := render.Candidate(c); err == nil {
					_, _ = l.code.Get(l.ctx, src)
				}
			}
		})
	}
	wg.Go(func() {
		defer close(work)
		for _, c := range candidates {
			select {
			case work <- c:
			case <-l.ctx.Done():
				return
			}
		}
	})
	return wg.Wait
}

// Compile compiles a candidate, or takes it from those that were, and loads it: the cubin where the device runs it, else the PTX.
func (l *Loader) Compile(c plan.Candidate) (device.Function, error) {
	src, err := render.Candidate(c)
	if err != nil {
		return nil, err
	}
	m, err := l.code.Get(l.ctx, src)
	if err != nil {
		return nil, err
	}
	image := m.PTX
	if info := l.dev.Info(); info.Backend == "cuda" && len(m.Cubin) > 0 && arch(info) == strings.TrimSuffix(m.Arch, "a") {
		image = m.Cubin
	}
	module, err := l.dev.Load(image)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", c.ID(), err)
	}
	l.mu.Lock()
	l.modules = append(l.modules, module)
	l.mu.Unlock()
	return launch.Function(module, src.Entry, &c.Geometry)
}

// arch is a device's real architecture as NVRTC spells it, without its suffix.
func arch(info device.Info) string { return fmt.Sprintf("sm_%d%d", info.Major, info.Minor) }

// Unload gives all loaded code back. The functions of the loader must not be used afterwards.
func (l *Loader) Unload() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for _, m := range l.modules {
		err = errors.Join(err, m.Unload())
	}
	l.modules = nil
	return err
}
