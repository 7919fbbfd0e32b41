package verify

import (
	"errors"
	"sync"

	"github.com/kvloom/kvloom/runtime/device"
)

// A buffer is sparse, that is neither filled nor summed, from these sizes: it is an address space with a few blocks in it. Far apart
// the smaller one holds, for filling and reading a buffer back costs seconds.
const (
	sparseFrom       = 1 << 30
	sparseFromSpread = 16 << 20
)

func (b *Buffer) sparse() bool {
	return b.Bytes >= sparseFrom || b.arena.spread && b.Bytes >= sparseFromSpread
}

// hugeUnit is what sizes of sparse buffers are rounded up to, so that the next case finds one that fits.
const hugeUnit = 4 << 30

// Huge lends sparse buffers to one case at a time and keeps them for the next: some 33 GB that two cases side by side would not find
// on many a GPU, and that the driver takes long to map. Environments on one device share one.
type Huge struct {
	dev    device.Device
	turn   sync.Mutex
	blocks []hugeBlock
}

type hugeBlock struct {
	base  device.Ptr
	bytes int64
	lent  bool
}

// NewHuge makes an empty lender. Close frees what it keeps.
func NewHuge(dev device.Device) *Huge { return &Huge{dev: dev} }

// take needs the turn. Of the blocks that are large enough it lends the smallest; where memory runs out it frees the others first.
func (h *Huge) take(bytes int64) (device.Ptr, error) {
	best := -1
	for i, b := range h.blocks {
		if !b.lent && b.bytes >= bytes && (best < 0 || b.bytes < h.blocks[best].bytes) {
			best = i
		}
	}
	if best >= 0 {
		h.blocks[best].lent = true
		return h.blocks[best].base, nil
	}
	bytes = (bytes + hugeUnit - 1) / hugeUnit * hugeUnit
	base, err := h.dev.Alloc(bytes)
	if err != nil {
		if free := h.freeUnused(); free != nil {
			return 0, errors.Join(err, free)
		}
		if base, err = h.dev.Alloc(bytes); err != nil {
			return 0, err
		}
	}
	h.blocks = append(h.blocks, hugeBlock{base, bytes, true})
	return base, nil
}

// give takes a block back. The turn may pass to another case after it.
func (h *Huge) give(base device.Ptr) {
	for i := range h.blocks {
		if h.blocks[i].base == base {
			h.blocks[i].lent = false
		}
	}
}

func (h *Huge) freeUnused() (err error) {
	kept := h.blocks[:0]
	for _, b := range h.blocks {
		if b.lent {
			kept = append(kept, b)
			continue
		}
		err = errors.Join(err, h.dev.Free(b.base))
	}
	h.blocks = kept
	return err
}

// Close frees all blocks. No case may hold one.
func (h *Huge) Close() error {
	h.turn.Lock()
	defer h.turn.Unlock()
	return h.freeUnused()
}
