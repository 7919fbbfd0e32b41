package sim

import (
	"regexp"
	"strconv"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/sim/num"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"wgmma": lowerWgmma})

// wgmmaState is the warp's part in a warpgroup's matrix operations, kept for the sanitizer.
type wgmmaState struct {
	issued uint32   // products so far
	groups []uint32 // issued at each commit
	flying []flight // registers of products that have not been waited for
}

// flight is an accumulator, or a fragment of A, of a product in flight.
type flight struct {
	reg     regUse
	product uint32
	result  bool
	src     int32
}

var wgmmaShape = regexp.MustCompile(`^m64n(\d+)k(\d+)$`)

func lowerWgmma(c *lowering) step {
	what := c.oneOf("mma_async", "fence", "commit_group", "wait_group")
	if !c.has("sync") || !c.has("aligned") {
		c.failf("want .sync.aligned")
	}
	switch what {
	case "fence":
		c.args(0, 0)
		return nil
	case "commit_group":
		c.args(0, 0)
		return func(w *warp, m uint32) { w.wgmmaCommitted() }
	case "wait_group":
		c.args(1, 1)
		keep := int(c.imm(0))
		return func(w *warp, m uint32) { w.wgmmaWaited(keep) }
	case "mma_async":
		return c.wgmmaProduct()
	}
	c.failf("want .mma_async, .fence, .commit_group or .wait_group")
	return nil
}

// product is one wgmma.mma_async. Every warp of the warpgroup computes its own 16 rows, when the instruction is issued: the results
// are there earlier than on a GPU, where they come with wait_group.
type product struct {
	n, k           int
	ea, eb         element
	a              []operand // registers of A, or nil
	da, db         operand   // descriptors
	d              []operand
	scale          operand // predicate: add to D
	negA, negB     bool
	transA, transB bool
	half, sat      bool
}

func (c *lowering) wgmmaProduct() step {
	p := product{}
	for i, m := range c.mods {
		if s := wgmmaShape.FindStringSubmatch(m); s != nil {
			p.n, _ = strconv.Atoi(s[1])
			p.k, _ = strconv.Atoi(s[2])
			c.mods = append(c.mods[:i:i], c.mods[i+1:]...)
			break
		}
	}
	p.sat = c.has("satfinite")
	if p.n < 8 || p.n > 256 || p.n%8 != 0 || len(c.mods) != 3 {
		c.failf("want m64nNkK, N a multiple of 8 up to 256, and the types of d, a and b")
	}
	dt, at, bt := c.mods[0], c.mods[1], c.mods[2]
	c.mods = nil
	var okA, okB bool
	p.ea, okA = elements[at]
	p.eb, okB = elements[bt]
	if !okA || !okB || p.ea.bits != p.eb.bits || p.ea.bits < 8 || p.k*p.ea.bits != 256 || (p.ea.float == nil) != (dt == "s32") {
		c.failf("no product of .%s by .%s into .%s with k %d is known", at, bt, dt, p.k)
	}
	p.half = dt == "f16"
	regs := p.n / 2
	if p.half {
		regs = p.n / 4
	}
	n := c.args(4, 8)
	p.d = c.elements(c.arg(0), regs, "b32", true)
	if a := c.arg(1); a.Kind == ptx.Vector {
		p.a = c.elements(a, 4, "b32", false)
	} else {
		p.da = c.src(1, "b64")
	}
	p.db = c.src(2, "b64")
	p.scale = c.predSrc(3)
	p.immediates(c, n)
	return p.step()
}

// immediates reads imm-scale-a, imm-scale-b, imm-trans-a and imm-trans-b, as many as there are.
func (p *product) immediates(c *lowering, n int) {
	next := 4
	if p.ea.float != nil {
		if n < 6 {
			c.failf("the scales of a and b are missing")
		}
		p.negA, p.negB = c.imm(4) == -1, c.imm(5) == -1
		next = 6
	}
	if p.ea.bits == 16 {
		if p.a == nil {
			p.transA = c.imm(next) == 1
			next++
		}
		p.transB = c.imm(next) == 1
		next++
	}
	if next != n {
		c.failf("%d operands, want %d", n, next)
	}
}

// descriptor is a decoded matrix descriptor.
type descriptor struct {
	start   uint64 // shared offset
	lead    uint64
	stride  uint64
	swizzle uint64 // bits of the exclusive or
	trans   bool
	size    uint64 // bytes of an element
}

func decodeDescriptor(v uint64, trans bool, bits int) (descriptor, bool) {
	d := descriptor{start: v & 0x3fff << 4, lead: v >> 16 & 0x3fff << 4, stride: v >> 32 & 0x3fff << 4, trans: trans, size: uint64(bits / 8)}
	d.swizzle = [4]uint64{0, 3, 2, 1}[v>>62]
	return d, v>>49&7 == 0
}

// offset is the shared address of element (r, k): r counts rows of A or columns of B. These are the canonical layouts of the ISA: core
// matrices of 8 x 16 bytes, whose 16-byte units the swizzle permutes by address bits 7 and up.
func (d descriptor) offset(r, k int) uint64 {
	per := int(16 / d.size) // elements of a unit
	row := uint64(16) << d.swizzle
	var a uint64
	switch {
	case !d.trans && d.swizzle == 0:
		a = uint64(r%8)*16 + uint64(r/8)*d.stride + uint64(k/per)*d.lead + uint64(k%per)*d.size
	case !d.trans:
		a = uint64(r%8)*row + uint64(r/8)*d.stride + uint64(k)*d.size
	case d.swizzle == 0:
		a = uint64(k%8)*16 + uint64(k/8)*d.lead + uint64(r/per)*d.stride + uint64(r%per)*d.size
	default:
		units := 1 << d.swizzle
		a = uint64(r/per%units)*16 + uint64(r/per/units)*d.lead + uint64(k%8)*row + uint64(k/8)*d.stride + uint64(r%per)*d.size
	}
	a += d.start
	return a ^ a>>7&(1<<d.swizzle-1)<<4
}

// wgmmaScratch holds B, one for each unit.
type wgmmaScratch struct {
	fb [256][32]float64
	ib [256][32]int32
}

func (p product) step() step {
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		w.tensorOps(16 * p.n * p.k)
		w.wgmmaIssued()
		if w.b.unit.wgmma == nil {
			w.b.unit.wgmma = new(wgmmaScratch)
		}
		if !w.sameDescriptor(p.db) || p.a == nil && !w.sameDescriptor(p.da) {
			return
		}
		add := w.pred(p.scale)&1 != 0
		x, s := &w.b.unit.matrix, w.b.unit.wgmma
		if p.ea.float == nil {
			if !loadA(p, w, &x.ia, p.ea.whole) || !loadB(p, w, &s.ib, p.eb.whole) {
				return
			}
			p.whole(w, &x.ia, &s.ib, add)
			return
		}
		if !loadA(p, w, &x.fa, p.ea.float) || !loadB(p, w, &s.fb, p.eb.float) {
			return
		}
		p.floating(w, &x.fa, &s.fb, add)
	}
}

func (w *warp) sameDescriptor(o operand) bool {
	v := w.in64(o.slot)
	for i := range v {
		if v[i] != v[0] {
			w.failf(i, kindOperand, "lanes of one warp give different matrix descriptors")
			return false
		}
	}
	return true
}

// loadA fills 16 rows: from registers, or rows 16 (warp % 4) and up of the descriptor's matrix.
func loadA[T float64 | int32](p product, w *warp, out *tile[T], decode func(uint32) T) bool {
	if p.a != nil {
		unpack(w, p.a, p.ea.bits, decode, out, true)
		negate(p.negA, out[:], p.k)
		return true
	}
	d, ok := decodeDescriptor(w.in64(p.da.slot)[0], p.transA, p.ea.bits)
	if !ok {
		w.failf(0, kindOperand, "matrix descriptors with a base offset are not known")
		return false
	}
	if !gatherUnits(w, d, 16*(w.id%4), 16, p.k, decode, func(r int) []T { return out[r&15][:] }) {
		return false
	}
	negate(p.negA, out[:], p.k)
	return true
}

func loadB[T float64 | int32](p product, w *warp, out *[256][32]T, decode func(uint32) T) bool {
	d, ok := decodeDescriptor(w.in64(p.db.slot)[0], p.transB, p.eb.bits)
	if !ok {
		w.failf(0, kindOperand, "matrix descriptors with a base offset are not known")
		return false
	}
	if !gatherUnits(w, d, 0, p.n, p.k, decode, func(c int) []T { return out[c&255][:] }) {
		return false
	}
	if p.negB {
		for c := range p.n {
			for k := range out[c] {
				out[c][k] = -out[c][k]
			}
		}
	}
	return true
}

func negate[T float64 | int32](on bool, rows [][64]T, k int) {
	if !on {
		return
	}
	for r := range rows {
		for i := range k {
			rows[r][i] = -rows[r][i]
		}
	}
}

// gatherUnits decodes rows first to first+rows of a matrix, one 16-byte unit at a time: elements along k, or along the rows of a
// transposed operand.
func gatherUnits[T float64 | int32](w *warp, d descriptor, first, rows, k int, decode func(uint32) T, row func(int) []T) bool {
	per := int(16 / d.size)
	if !d.trans {
		for r := range rows {
			out := row(r)
			for at := 0; at < k; at += per {
				p := w.matrixUnit(d.offset(first+r, at))
				if p == nil {
					return false
				}
				for i := range per {
					out[at+i] = decode(uint32(load(unsafe.Add(p, i*int(d.size)), int(d.size))))
				}
			}
		}
		return true
	}
	for r := 0; r < rows; r += per {
		for at := range k {
			p := w.matrixUnit(d.offset(first+r, at))
			if p == nil {
				return false
			}
			for i := range per {
				row(r + i)[at] = decode(uint32(load(unsafe.Add(p, i*int(d.size)), int(d.size))))
			}
		}
	}
	return true
}

// matrixUnit is 16 bytes of shared memory that a descriptor reaches, or nil after a fault.
func (w *warp) matrixUnit(addr uint64) unsafe.Pointer {
	off := addr - sharedBase
	if limit := uint64(w.b.launch.shared); off >= limit || 16 > limit-off {
		w.failAt(0, kindBounds, addr, "the matrix descriptor reaches shared offset %d; the block has %d bytes", int64(off), limit)
		return nil
	}
	if w.san != nil {
		for g := uint64(0); g < 16; g += granule {
			w.matrixRead(off+g, granule)
		}
	}
	return unsafe.Pointer(&w.b.shared[off])
}

func (p product) whole(w *warp, a *tile[int32], b *[256][32]int32, add bool) {
	for c := 0; c < p.n; c += 8 {
		for r := range 16 {
			x := a[r][:p.k]
			for h := 0; h < 8; h += 4 {
				var s [4]int32
				s[0], s[1], s[2], s[3] = dots(x, b[c+h][:p.k], b[c+h+1][:p.k], b[c+h+2][:p.k], b[c+h+3][:p.k])
				for j, v := range s {
					y := &w.r[p.d[c/2+r>>3*2+j&1].slot][r&7*4+(h+j)/2]
					total := int64(v)
					if add {
						total += int64(int32(*y))
					}
					if p.sat {
						*y = clamp32(total)
					} else {
						*y = uint32(total)
					}
				}
			}
		}
	}
}

func (p product) floating(w *warp, a *tile[float64], b *[256][32]float64, add bool) {
	for c := 0; c < p.n; c += 8 {
		for r := range 16 {
			x := a[r][:p.k]
			for h := 0; h < 8; h += 4 {
				var s [4]float64
				s[0], s[1], s[2], s[3] = dots(x, b[c+h][:p.k], b[c+h+1][:p.k], b[c+h+2][:p.k], b[c+h+3][:p.k])
				for j, v := range s {
					i, lane := c/2+r>>3*2+j&1, r&7*4+(h+j)/2
					if p.half {
						p.putHalf(w, i, lane, v, add)
						continue
					}
					y := &w.r[p.d[i].slot][lane]
					if add {
						v += float64(f32of(*y))
					}
					*y = bits32(num.Canon(float32(v)))
				}
			}
		}
	}
}

// putHalf stores to an f16 accumulator, two in a register.
func (p product) putHalf(w *warp, i, lane int, v float64, add bool) {
	y := &w.r[p.d[i/2].slot][lane]
	shift := 16 * (i & 1)
	if add {
		v += float64(num.Half(uint16(*y >> shift)))
	}
	*y = *y&^(0xffff<<shift) | uint32(num.ToHalf(v, num.RN))<<shift
}
