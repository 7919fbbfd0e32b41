package sim

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// Address windows of the generic space: the top byte of an address tells its space; 0 is global memory.
const (
	windowShift   = 56
	windowShared  = uint64(1) << windowShift
	windowLocal   = uint64(2) << windowShift
	windowParam   = uint64(3) << windowShift
	windowMask    = uint64(0xff) << windowShift
	sharedOffset  = 0xffffff // low bits of a shared address: the offset; the block's rank in its cluster is above them
	sharedRank    = 24
	sharedBase    = 1024 // sm_90 keeps the first KB of a block's shared memory
	globalBase    = uint64(0x7f_0000_0000)
	globalSpacing = uint64(2 << 20) // a gap after every allocation, so that strays fall into it
)

// alloc is one allocation. Its memory is mapped when touched, so a huge one costs only what is used.
type alloc struct {
	base  uint64
	size  uint64
	mem   unsafe.Pointer // size bytes
	keep  []byte         // what owns mem
	freed bool           // kept in the table so that a use after free is told from a stray
	name  string         // variable name of a module's global, else ""
	big   bool
	shade *globalShadow
}

// space is the global memory of one device.
type space struct {
	mu       sync.Mutex
	table    atomic.Pointer[[]*alloc] // sorted by base; replaced, never changed
	next     uint64
	used     int64
	shadowed bool // the sanitizer is on
}

func newSpace() *space {
	s := &space{next: globalBase}
	s.table.Store(&[]*alloc{})
	return s
}

// alloc makes an allocation of size bytes, 256-byte aligned.
func (s *space) alloc(size int64, name string) (*alloc, error) {
	if size <= 0 {
		return nil, fmt.Errorf("sim: allocation of %d bytes: ask for 1 or more", size)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &alloc{base: s.next, size: uint64(size), name: name}
	if a.base+a.size >= 1<<windowShift {
		return nil, fmt.Errorf("sim: out of address space for %d bytes", size)
	}
	keep, big, err := reserve(size)
	if err != nil {
		return nil, fmt.Errorf("sim: allocation of %d bytes: %w", size, err)
	}
	a.keep, a.big, a.mem = keep, big, unsafe.Pointer(unsafe.SliceData(keep))
	if s.shadowed {
		if a.shade, err = newGlobalShadow(a.size); err != nil {
			return nil, fmt.Errorf("sim: shadow of an allocation of %d bytes: %w", size, err)
		}
	}
	s.next = (a.base + a.size + 2*globalSpacing - 1) / globalSpacing * globalSpacing
	s.used += size
	old := *s.table.Load()
	table := append(append(make([]*alloc, 0, len(old)+1), old...), a)
	s.table.Store(&table)
	return a, nil
}

// free ends an allocation; its addresses are never given again.
func (s *space) free(p uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.find(p)
	if a == nil || a.base != p || a.freed {
		return fmt.Errorf("sim: free of %#x: not a live allocation", p)
	}
	old := *s.table.Load()
	table := append([]*alloc(nil), old...)
	i := sort.Search(len(table), func(i int) bool { return table[i].base >= p })
	table[i] = &alloc{base: a.base, size: a.size, freed: true, name: a.name}
	s.table.Store(&table)
	s.used -= int64(a.size)
	return a.release()
}

// release gives the memory back.
func (a *alloc) release() error {
	var first error
	if a.shade != nil && a.shade.big {
		first = release(a.shade.written)
	}
	if a.big {
		if err := release(a.keep); err != nil {
			first = err
		}
	}
	return first
}

// find returns the allocation at or before an address; nil where there is none.
func (s *space) find(p uint64) *alloc {
	table := *s.table.Load()
	i := sort.Search(len(table), func(i int) bool { return table[i].base > p })
	if i == 0 {
		return nil
	}
	return table[i-1]
}

// slice is the live memory at [p, p+n).
func (s *space) slice(p uint64, n int64, what string) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("sim: %s of %d bytes", what, n)
	}
	if n == 0 {
		return nil, nil
	}
	a := s.find(p)
	if a == nil || a.freed || p-a.base > a.size || uint64(n) > a.size-(p-a.base) {
		return nil, fmt.Errorf("sim: %s of %d bytes at %#x: %s", what, n, p, s.near(p))
	}
	return unsafe.Slice((*byte)(unsafe.Add(a.mem, p-a.base)), n), nil
}

// near describes where an address lies, for a person.
func (s *space) near(p uint64) string {
	a := s.find(p)
	if a == nil {
		if p == 0 {
			return "null"
		}
		return "below every allocation"
	}
	label := fmt.Sprintf("the allocation of %d bytes at %#x", a.size, a.base)
	if a.name != "" {
		label = fmt.Sprintf("the variable %s, %d bytes at %#x", a.name, a.size, a.base)
	}
	off := p - a.base
	switch {
	case a.freed && off < a.size:
		return fmt.Sprintf("offset %d of %s, which was freed", off, label)
	case off < a.size:
		return fmt.Sprintf("offset %d of %s", off, label)
	}
	return fmt.Sprintf("%d bytes past the end of %s", off-a.size, label)
}

// Alloc implements device.Device.
func (d *Device) Alloc(bytes int64) (device.Ptr, error) {
	a, err := d.space.alloc(bytes, "")
	if err != nil {
		return 0, err
	}
	return device.Ptr(a.base), nil
}

// Free implements device.Device.
func (d *Device) Free(p device.Ptr) error {
	if p == 0 {
		return nil
	}
	return d.space.free(uint64(p))
}

// Write implements device.Device.
func (d *Device) Write(dst device.Ptr, src []byte) error {
	b, err := d.space.slice(uint64(dst), int64(len(src)), "write")
	if err == nil {
		copy(b, src)
		d.breakChain()
		d.noteWrite(uint64(dst), int64(len(src)))
	}
	return err
}

// Read implements device.Device.
func (d *Device) Read(dst []byte, src device.Ptr) error {
	b, err := d.space.slice(uint64(src), int64(len(dst)), "read")
	if err == nil {
		copy(dst, b)
	}
	return err
}

// Fill implements device.Device.
func (d *Device) Fill(dst device.Ptr, value byte, bytes int64) error {
	b, err := d.space.slice(uint64(dst), bytes, "fill")
	if err != nil {
		return err
	}
	if len(b) > 0 {
		b[0] = value
		for n := 1; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
	}
	d.breakChain()
	d.noteWrite(uint64(dst), bytes)
	return nil
}
