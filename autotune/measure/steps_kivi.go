package measure

import (
	"unsafe"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// kivi reports whether the cache's pages are quantised.
func (r *Rig) kivi() bool { return r.Spec.Cache.KiviBits() > 0 }

// storeBytes is one layer's quantised pages.
func (r *Rig) storeBytes() int64 {
	return r.Problem.Batch * r.Problem.MaxPages * r.Problem.KVHeads * int64(r.Spec.StoreBytes())
}

// needStore makes the store of a quantised cache: n sets for work that reads all of it, one for work that reads chosen pages.
func (r *Rig) needStore(whole bool) error {
	if !r.kivi() {
		return nil
	}
	n := 1
	if whole {
		n = r.sets(r.storeBytes())
	}
	if r.stored.n >= n {
		return nil
	}
	var err error
	if r.stored, err = r.newRing(r.storeBytes(), n); err != nil {
		return err
	}
	return r.fill(r.stored.base, r.stored.each*int64(n), r.quantised(257))
}

// quantised makes n records of random normal keys and values.
func (r *Rig) quantised(n int) []byte {
	k := reference.Kivi{KiviRecord: r.Spec.Kivi()}
	random := func() []float64 {
		x := make([]float64, k.PageSize*k.HeadDim)
		for i := range x {
			x[i] = r.rand.NormFloat64()
		}
		return x
	}
	var out []byte
	for range n {
		out = append(out, k.Pack(k.Quantise(random(), random()))...)
	}
	return out
}

// describeStore fills in what a quantised cache has besides rows, set i of it.
func (r *Rig) describeStore(c *kernel.KVCache, i int) {
	if !r.kivi() {
		return
	}
	c.RowTable, c.StoreHeadStride = r.table, int64(r.Spec.StoreBytes())
	c.StoreBlockStride = r.Problem.KVHeads * c.StoreHeadStride
	if r.stored.n > 0 {
		c.Store = r.stored.at(i)
	}
}

// quantizeStep quantises all pages of the prompt. quantized_lens goes back to zero as summaryStep's built_lens does.
func (r *Rig) quantizeStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needPool(true); err != nil {
		return nil, err
	}
	if err := r.needStore(true); err != nil {
		return nil, err
	}
	if r.built.n == 0 {
		var err error
		if r.built, err = r.newRing(r.Problem.Batch*4, maxLaunches); err != nil {
			return nil, err
		}
	}
	args := make([]kernel.KVQuantizeArgs, 1)
	return &Step{Sets: r.pool.n, launch: func(i int) error {
		args[0] = kernel.KVQuantizeArgs{Cache: r.cache(i), QuantizedLens: r.built.at(i), Workspace: ws}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}, reset: func() error { return r.Stream.FillAsync(r.built.base, 0, r.built.each*int64(r.built.n)) }}, nil
}
