package sim

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

const tensorMark = 0x4b56_5445_4e53_4f52 // "KVTENSOR"

// tensorMap is the simulator's encoding of device.TensorMap.
type tensorMap struct {
	mark    uint64
	base    uint64
	dims    [5]uint64
	strides [4]uint64
	box     [5]uint16
	rank    uint8
	element uint8
	swizzle uint8
	_       uint8
}

// NewTensorMap implements device.TensorMapper, with the driver's rules.
func (d *Device) NewTensorMap(s device.TensorSpec) (device.TensorMap, error) {
	var out device.TensorMap
	rank := len(s.Dims)
	bad := func(format string, args ...any) (device.TensorMap, error) {
		return out, fmt.Errorf("sim: tensor map: "+format, args...)
	}
	switch {
	case rank < 1 || rank > 5 || len(s.Box) != rank || len(s.Strides) != rank-1:
		return bad("%d dims, %d strides and %d box sizes: want 1 to 5 dims, one stride fewer, one box size each", rank, len(s.Strides), len(s.Box))
	case s.Base == 0 || s.Base%16 != 0:
		return bad("base %#x: not null, 16-byte aligned", uint64(s.Base))
	case s.ElementBytes != 1 && s.ElementBytes != 2 && s.ElementBytes != 4 && s.ElementBytes != 8:
		return bad("elements of %d bytes: 1, 2, 4 or 8", s.ElementBytes)
	case s.Swizzle > device.Swizzle128:
		return bad("swizzle %d is not known", s.Swizzle)
	}
	t := tensorMap{mark: tensorMark, base: uint64(s.Base), rank: uint8(rank), element: uint8(s.ElementBytes), swizzle: uint8(s.Swizzle)}
	for i := range rank {
		if s.Dims[i] == 0 || s.Dims[i] > 1<<32 || s.Box[i] == 0 || s.Box[i] > 256 {
			return bad("dim %d: %d elements, box %d: dims 1 to 2^32, boxes 1 to 256", i, s.Dims[i], s.Box[i])
		}
		t.dims[i], t.box[i] = s.Dims[i], uint16(s.Box[i])
		if i > 0 {
			if s.Strides[i-1]%16 != 0 || s.Strides[i-1] >= 1<<40 {
				return bad("stride %d of dim %d: a multiple of 16 below 2^40", s.Strides[i-1], i)
			}
			t.strides[i-1] = s.Strides[i-1]
		}
	}
	inner := int(s.Box[0]) * s.ElementBytes
	if inner%16 != 0 || s.Swizzle != device.NoSwizzle && inner > 16<<s.Swizzle {
		return bad("a box row of %d bytes: multiples of 16, and at most the swizzle's span", inner)
	}
	*(*tensorMap)(unsafe.Pointer(&out)) = t
	return out, nil
}

// bytes of a whole box.
func (t *tensorMap) bytes() uint64 {
	n := uint64(t.element)
	for i := range int(t.rank) {
		n *= uint64(t.box[i])
	}
	return n
}

// rows calls f for each row of a box: its offset in the box, its address in global memory, and the elements [from, to) of it that lie
// inside the tensor.
func (t *tensorMap) rows(at [5]int32, f func(offset, addr uint64, from, to int)) {
	width := uint64(t.box[0]) * uint64(t.element)
	from, to := 0, int(t.box[0])
	if at[0] < 0 {
		from = min(int(-int64(at[0])), to)
	}
	if over := int64(at[0]) + int64(to) - int64(t.dims[0]); over > 0 {
		to = max(to-int(min(over, int64(to))), from)
	}
	count := uint64(1)
	for i := 1; i < int(t.rank); i++ {
		count *= uint64(t.box[i])
	}
	for r := range count {
		addr := t.base + uint64(int64(at[0])*int64(t.element))
		inside, left := true, r
		for i := 1; i < int(t.rank); i++ {
			c := int64(at[i]) + int64(left%uint64(t.box[i]))
			left /= uint64(t.box[i])
			inside = inside && c >= 0 && uint64(c) < t.dims[i]
			addr += uint64(c) * t.strides[i-1]
		}
		if inside {
			f(r*width, addr, from, to)
		} else {
			f(r*width, addr, 0, 0)
		}
	}
}

// swizzled permutes the 16-byte units of a shared address.
func (t *tensorMap) swizzled(addr uint64) uint64 {
	return addr ^ addr>>7&(1<<t.swizzle-1)<<4
}

// tensorCopy is one lowered cp.async.bulk.tensor.
type tensorCopy struct {
	load      bool
	rank      int
	tensor    access
	coords    []operand
	shared    access
	bar       access
	multicast bool
	ctas      operand
}

// bulkTensor lowers cp.async.bulk.tensor in tiled mode.
func (c *lowering) bulkTensor() step {
	x := tensorCopy{}
	switch c.oneOf("1d", "2d", "3d", "4d", "5d") {
	case "1d":
		x.rank = 1
	case "2d":
		x.rank = 2
	case "3d":
		x.rank = 3
	case "4d":
		x.rank = 4
	case "5d":
		x.rank = 5
	default:
		c.failf("want .1d to .5d")
	}
	c.has("tile")
	dst, _ := c.bulkSpaces()
	x.load = dst != "global"
	signal, group := c.has("mbarrier::complete_tx::bytes"), c.has("bulk_group")
	x.multicast = c.has("multicast::cluster")
	policy := c.cached()
	if signal != x.load || group == x.load {
		c.failf("loads complete on an mbarrier, stores in a bulk group")
	}
	mem, at := 0, 1
	if !x.load {
		mem, at = 1, 0
	}
	x.shared = c.address(mem, spShared, 16)
	x.shared.align, x.shared.write, x.shared.async = 128, x.load, true
	c.tensorOperand(&x, c.arg(at))
	n := 2
	if x.load {
		x.bar = c.mbAddress(n, spShared)
		n++
	}
	if x.multicast {
		x.ctas = c.any(c.arg(n), "b16")
		n++
	}
	if policy {
		c.src(n, "b64")
		n++
	}
	c.args(n, n)
	return x.step()
}

// tensorOperand reads [map, {coordinates}].
func (c *lowering) tensorOperand(x *tensorCopy, o ptx.Operand) {
	if o.Kind != ptx.Address || len(o.Elems) != 2 || o.Elems[1].Kind != ptx.Vector || len(o.Elems[1].Elems) != x.rank {
		c.failf("want [tensor map, {%d coordinates}]", x.rank)
	}
	x.tensor = c.addressOf(o, spGeneric, 128)
	x.tensor.align, x.tensor.async = 64, true
	for _, e := range o.Elems[1].Elems {
		x.coords = append(x.coords, c.source(e, "s32"))
	}
}

func (c *lowering) tensorPrefetch() step {
	x := tensorCopy{rank: 2}
	for i, d := range []string{"1d", "2d", "3d", "4d", "5d"} {
		if c.has(d) {
			x.rank = i + 1
		}
	}
	for c.oneOf("L2", "global", "tile") != "" {
	}
	c.cached()
	c.tensorOperand(&x, c.arg(0))
	return nil
}

func (x tensorCopy) step() step {
	return func(w *warp, m uint32) {
		x := x
		w.effect = true
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p, _ := w.bulkPointer(&x.tensor, i)
			if p == nil {
				return
			}
			t := *(*tensorMap)(p)
			if t.mark != tensorMark || int(t.rank) != x.rank {
				w.failf(i, kindOperand, "no tensor map of %d dims that this device made is at this address", x.rank)
				return
			}
			var at [5]int32
			for k, o := range x.coords {
				at[k] = int32(w.lane(o, i))
			}
			if !x.load || !x.multicast {
				if !x.one(w, i, &t, at, -1) {
					return
				}
				continue
			}
			for set := uint32(w.lane(x.ctas, i)); set != 0; set &= set - 1 {
				if !x.one(w, i, &t, at, bits.TrailingZeros32(set)) {
					return
				}
			}
		}
	}
}

// one enqueues the copy of one lane to or from one block's shared memory.
func (x *tensorCopy) one(w *warp, lane int, t *tensorMap, at [5]int32, rank int) bool {
	addr := w.laneAddress(&x.shared, lane)
	if rank >= 0 {
		addr = addr&^(0xff<<sharedRank) | uint64(rank)<<sharedRank
	}
	x.shared.size = t.bytes()
	mem := w.pointer(&x.shared, lane, addr)
	if mem == nil || !x.inside(w, lane, t, at) {
		return false
	}
	tm := *t
	start := addr & sharedOffset
	do := func() { tm.move(w.b.launch.dev.space, mem, start, at, x.load) }
	if !w.later(bulkOp{do: do, n: t.bytes()}, &x.bar, lane, rank, x.load) {
		return false
	}
	if x.load {
		w.bulkCopied(lane, &x.shared, addr, nil, 0, t.bytes(), w.signalOf(&x.bar, lane, rank, true))
	} else {
		w.bulkRead(lane, &x.shared, addr, t.bytes())
	}
	return true
}

// inside checks that the part of the box inside the tensor is inside an allocation.
func (x *tensorCopy) inside(w *warp, lane int, t *tensorMap, at [5]int32) bool {
	ok := true
	t.rows(at, func(_, addr uint64, from, to int) {
		if !ok || from == to {
			return
		}
		a := access{space: spGlobal, size: uint64(to-from) * uint64(t.element), align: 1, write: !x.load, async: true}
		ok = w.pointer(&a, lane, addr+uint64(from)*uint64(t.element)) != nil
	})
	return ok
}

// move copies the box. Elements outside the tensor read as zero and are not written.
func (t *tensorMap) move(s *space, mem unsafe.Pointer, start uint64, at [5]int32, toShared bool) {
	size := uint64(t.element)
	width := uint64(t.box[0]) * size
	t.rows(at, func(offset, addr uint64, from, to int) {
		var row []byte
		if from < to {
			row, _ = s.slice(addr+uint64(from)*size, int64(uint64(to-from)*size), "tensor copy")
		}
		for u := uint64(0); u < width; u += 16 {
			unit := unsafe.Slice((*byte)(unsafe.Add(mem, t.swizzled(start+offset+u)-start)), 16)
			for b := range uint64(16) {
				i := int64(u+b) - int64(uint64(from)*size)
				in := i >= 0 && i < int64(len(row))
				switch {
				case toShared && in:
					unit[b] = row[i]
				case toShared:
					unit[b] = 0
				case in:
					row[i] = unit[b]
				}
			}
		}
	})
	if !toShared {
		t.rows(at, func(_, addr uint64, from, to int) {
			if a := s.find(addr); from < to && a != nil && a.shade != nil {
				mark(a.shade.written, addr+uint64(from)*size-a.base, uint64(to-from)*size, true)
			}
		})
	}
}
