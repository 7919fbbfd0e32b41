package kernel

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// KVQuantize is the work that moves complete pages of a KIVI cache into its store.
const KVQuantize = "kv_quantize"

// Kivi tells whether the model's cache is quantised: complete pages in the store, the one that is filling in 16 bits.
func (m *Model) Kivi() bool { return m.StoreBytes > 0 }

// KVQuantize quantises every page that became complete since quantized_lens and advances quantized_lens. newPages is how many pages a
// request gains, as the grid is sized for it; any number stays right. Summaries of quantised keys (locks.summaries pre) are built after it,
// those of the keys in 16 bits (post) at any time.
func (s *Set) KVQuantize(st device.Stream, a *KVQuantizeArgs, w Workload, newPages int) error {
	if err := s.CheckKVQuantize(a); err != nil {
		return err
	}
	p := s.problem(&a.Cache)
	p.NewPages = int64(newPages)
	return s.launch(st, quantizeWork, w, p, a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// CheckKVQuantize is CheckPageSummary for kv_quantize.
func (s *Set) CheckKVQuantize(a *KVQuantizeArgs) error {
	if a == nil {
		return &ArgumentError{KVQuantize, "arguments", "are nil"}
	}
	c, m := checker{work: KVQuantize}, &s.bundle.Model
	c.cache(m, &a.Cache, true)
	c.store(m, &a.Cache)
	c.ptr("quantized_lens", a.QuantizedLens, 4)
	c.optional("workspace", a.Workspace, vectorBytes)
	return c.result()
}

// store checks where quantised pages lie.
func (c *checker) store(m *Model, k *KVCache) {
	if !m.Kivi() {
		return
	}
	c.ptr("cache.store", k.Store, vectorBytes)
	c.stride("cache.store_block_stride", k.StoreBlockStride, int64(m.StoreBytes), vectorBytes, 2)
	c.stride("cache.store_head_stride", k.StoreHeadStride, int64(m.StoreBytes), vectorBytes, int(k.KVHeads))
}
