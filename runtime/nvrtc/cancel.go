package nvrtc

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ebitengine/purego"
)

// running maps the payload of a compilation to its context. One callback serves them all, as purego never frees one.
var (
	running  sync.Map // uintptr -> context.Context
	payload  atomic.Uintptr
	callback = sync.OnceValue(func() uintptr {
		return purego.NewCallback(func(id, _ uintptr) int32 {
			if ctx, ok := running.Load(id); ok && ctx.(context.Context).Err() != nil {
				return 1
			}
			return 0
		})
	})
)

// cancelWith lets ctx stop the program's compilation, where NVRTC can and ctx ever ends. Call what it returns after compiling.
func (c *Compiler) cancelWith(ctx context.Context, prog uintptr) (done func()) {
	if c.lib.setFlowCallback == nil || ctx.Done() == nil {
		return func() {}
	}
	id := payload.Add(1)
	running.Store(id, ctx)
	c.lib.setFlowCallback(prog, callback(), id) // failing here costs only the early stop
	return func() { running.Delete(id) }
}
