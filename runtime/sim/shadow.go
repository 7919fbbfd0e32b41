package sim

// touch is one access to a granule of memory.
type touch struct {
	gid    uint32 // warp or copy engine, over the whole grid
	clock  uint32 // its step
	sync   uint32 // its warp barriers so far
	lanes  uint32
	launch uint32 // 0: nothing touched it
	inst   int32
	step   int64 // instruction count of the warp: lanes of one instruction
	bytes  uint8 // of the granule
	strong bool  // atomic, volatile, relaxed, acquire or release
	async  bool  // a copy engine
	known  bool  // value holds what a plain store stored in bytes
	value  uint32
}

// same reports whether two stores put the same into the bytes that both cover.
func (t *touch) same(o *touch) bool {
	return t.known && o.known && (t.value^o.value)&spread(t.bytes&o.bytes) == 0
}

// together tells whether two accesses are one instruction of a warp. Its number alone does not say so: another launch may reach the same
// instruction at the same count.
func (t *touch) together(o *touch) bool {
	return t.step == o.step && t.gid == o.gid && t.launch == o.launch
}

// spread widens a bit for each byte to the byte.
func spread(m uint8) uint32 {
	return uint32(m&1)*0xff | uint32(m>>1&1)*0xff00 | uint32(m>>2&1)*0xff0000 | uint32(m>>3&1)*0xff000000
}

// granule is the size of a shadow cell in bytes.
const granule = 4

// cell is the shadow of one granule.
type cell struct {
	write   touch
	readers []touch
	pending int32 // 1 + instruction of a cp.async that has not landed
}

// shadowPage covers a piece of global memory.
const shadowPage = 1024

// globalShadow is the shadow of one allocation.
type globalShadow struct {
	written []byte // a bit for each byte; mapped as it is touched
	big     bool
	pages   map[uint64]*[shadowPage / granule]cell
}

func newGlobalShadow(size uint64) (*globalShadow, error) {
	b, big, err := reserve(int64(size/8 + 16))
	if err != nil {
		return nil, err
	}
	return &globalShadow{written: b, big: big, pages: map[uint64]*[shadowPage / granule]cell{}}, nil
}

func (g *globalShadow) cell(off uint64) *cell {
	p := g.pages[off/shadowPage]
	if p == nil {
		p = new([shadowPage / granule]cell)
		g.pages[off/shadowPage] = p
	}
	return &p[off%shadowPage/granule]
}

// sharedShadow is the shadow of one block's shared memory.
type sharedShadow struct {
	cells   []cell
	written []byte
}

func (s *sharedShadow) reset(size uint32) {
	n := int(size/granule + 8)
	if len(s.cells) < n {
		s.cells = make([]cell, n)
		s.written = make([]byte, size/8+16)
	}
	for i := range s.cells {
		s.cells[i].write = touch{}
		s.cells[i].readers = s.cells[i].readers[:0]
		s.cells[i].pending = 0
	}
	clear(s.written)
}

// mark sets or clears the written bits of [off, off+n).
func mark(written []byte, off, n uint64, on bool) {
	for n > 0 {
		if off%8 == 0 && n >= 8 {
			v := byte(0)
			if on {
				v = 0xff
			}
			end := off/8 + n/8
			for i := off / 8; i < end; i++ {
				written[i] = v
			}
			off, n = end*8, n%8
			continue
		}
		if bit := byte(1) << (off % 8); on {
			written[off/8] |= bit
		} else {
			written[off/8] &^= bit
		}
		off++
		n--
	}
}

// unwritten returns the first byte of [off, off+n) that nothing wrote, or n.
func unwritten(written []byte, off, n uint64) uint64 {
	for i := uint64(0); i < n; i++ {
		b := written[(off+i)/8]
		if b == 0xff && (off+i)%8 == 0 {
			i += 7
			continue
		}
		if b>>((off+i)%8)&1 == 0 {
			return i
		}
	}
	return n
}

// bytesOf is the mask of a granule's bytes inside [off, off+n).
func bytesOf(g, off, n uint64) uint8 {
	m := uint8(0)
	for i := range uint64(granule) {
		if x := g + i; x >= off && x < off+n {
			m |= 1 << i
		}
	}
	return m
}
