package verify

import (
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/kvloom/kvloom/runtime/device"
)

// Bytes that no kernel writes by chance. PoisonByte repeated is a negative id, a denormal-free float and a bf16 of -2.7e-16: wrong
// wherever it is compared.
const (
	guardByte  = 0xC7
	PoisonByte = 0xA5
)

// Arena owns the device buffers of one case.
type Arena struct {
	env     *Env
	buffers []*Buffer
	spread  bool // the case's blocks lie far apart
	huge    bool // has the turn of Env.Huge
}

// Buffer is device memory between two guard bands.
type Buffer struct {
	Name  string
	Bytes int64

	arena  *Arena
	base   device.Ptr // of the allocation
	frozen bool       // an input: must be unchanged after every launch
	sum    uint64     // of its contents
}

// NewArena makes an empty arena.
func (e *Env) NewArena() *Arena { return &Arena{env: e} }

// Alloc makes a poisoned buffer. Zero bytes become a buffer of one byte's size, so that its address is valid.
func (a *Arena) Alloc(name string, size int64) (*Buffer, error) {
	b := &Buffer{Name: name, Bytes: max(size, 1), arena: a}
	guard := a.env.Guard
	if b.sparse() && guard > 0 && !a.huge {
		a.env.Huge.turn.Lock()
		a.huge = true
	}
	base, err := a.env.take(b.Bytes+2*guard, b.sparse())
	if err != nil {
		return nil, fmt.Errorf("buffer %q of %d bytes: %w", name, size, err)
	}
	b.base = base
	a.buffers = append(a.buffers, b)
	if guard > 0 {
		err = errors.Join(a.env.Dev.Fill(base, guardByte, guard), a.env.Dev.Fill(b.Ptr()+device.Ptr(b.Bytes), guardByte, guard))
	}
	return b, errors.Join(err, b.Poison())
}

// allocationUnit is what sizes are rounded up to, so that the next case finds an allocation that fits.
const allocationUnit = 64 << 10

// take allocates, from what an earlier case gave back where the size is the same: the driver's own allocation and release wait for
// the whole device. The simulator gets every buffer anew and as small as asked for, for it knows the bounds of each.
func (e *Env) take(bytes int64, sparse bool) (device.Ptr, error) {
	if e.Guard == 0 {
		return e.Dev.Alloc(bytes)
	}
	if sparse {
		return e.Huge.take(bytes)
	}
	bytes = rounded(bytes)
	if list := e.free[bytes]; len(list) > 0 {
		e.free[bytes] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	return e.Dev.Alloc(bytes)
}

// give takes an allocation of take back.
func (e *Env) give(p device.Ptr, bytes int64, sparse bool) error {
	if e.Guard == 0 {
		return e.Dev.Free(p)
	}
	if sparse {
		e.Huge.give(p)
		return nil
	}
	bytes = rounded(bytes)
	e.free[bytes] = append(e.free[bytes], p)
	return nil
}

func rounded(bytes int64) int64 {
	return (bytes + allocationUnit - 1) / allocationUnit * allocationUnit
}

// Ptr is the buffer's address: as aligned as the device's allocations.
func (b *Buffer) Ptr() device.Ptr { return b.base + device.Ptr(b.arena.env.Guard) }

// Poison fills the buffer with PoisonByte. Sparse buffers are left as they are.
func (b *Buffer) Poison() error {
	if b.sparse() {
		return nil
	}
	return b.Fill(PoisonByte)
}

// Fill sets every byte.
func (b *Buffer) Fill(value byte) error {
	b.frozen = false
	return b.arena.env.Dev.Fill(b.Ptr(), value, b.Bytes)
}

// Write copies data to the start of the buffer.
func (b *Buffer) Write(data []byte) error { return b.WriteAt(data, 0) }

// WriteAt copies data to an offset.
func (b *Buffer) WriteAt(data []byte, at int64) error {
	if at < 0 || at+int64(len(data)) > b.Bytes {
		panic(fmt.Sprintf("BUG: verify: write of %d bytes at %d of buffer %q of %d", len(data), at, b.Name, b.Bytes))
	}
	b.frozen = false
	if len(data) == 0 {
		return nil
	}
	return b.arena.env.Dev.Write(b.Ptr()+device.Ptr(at), data)
}

// Read copies the whole buffer to the host.
func (b *Buffer) Read() ([]byte, error) { return b.ReadAt(0, b.Bytes) }

// ReadAt copies part of the buffer to the host.
func (b *Buffer) ReadAt(at, size int64) ([]byte, error) {
	out := make([]byte, size)
	if err := b.arena.env.Dev.Read(out, b.Ptr()+device.Ptr(at)); err != nil {
		return nil, fmt.Errorf("read buffer %q: %w", b.Name, err)
	}
	return out, nil
}

// Freeze marks the buffer as an input: Check reports when a kernel changed it. A later Write lifts the mark.
func (b *Buffer) Freeze() error {
	if b.sparse() {
		return nil
	}
	data, err := b.Read()
	if err != nil {
		return err
	}
	b.frozen, b.sum = true, maphash.Bytes(b.arena.env.seed, data)
	return nil
}

// Input makes a frozen buffer of data.
func (a *Arena) Input(name string, data []byte) (*Buffer, error) {
	b, err := a.Alloc(name, int64(len(data)))
	if err != nil {
		return nil, err
	}
	if err := b.Write(data); err != nil {
		return nil, err
	}
	return b, b.Freeze()
}

// Check reads every guard band and every input back and reports the first byte that a kernel wrote outside its output.
func (a *Arena) Check() error {
	for _, b := range a.buffers {
		if err := b.check(); err != nil {
			return err
		}
	}
	return nil
}

func (b *Buffer) check() error {
	guard := b.arena.env.Guard
	for _, side := range []struct {
		at   device.Ptr
		name string
		zero int64 // offset of the band in the buffer
	}{{b.base, "before", -guard}, {b.Ptr() + device.Ptr(b.Bytes), "behind", b.Bytes}} {
		if guard == 0 {
			break
		}
		band := make([]byte, guard)
		if err := b.arena.env.Dev.Read(band, side.at); err != nil {
			return fmt.Errorf("read the guard band of %q: %w", b.Name, err)
		}
		for i, x := range band {
			if x != guardByte {
				return fmt.Errorf("a kernel wrote %s buffer %q of %d bytes: offset %d holds %#02x", side.name, b.Name, b.Bytes, side.zero+int64(i), x)
			}
		}
	}
	if !b.frozen {
		return nil
	}
	data, err := b.Read()
	if err != nil {
		return err
	}
	if maphash.Bytes(b.arena.env.seed, data) != b.sum {
		return fmt.Errorf("a kernel changed its input %q", b.Name)
	}
	return nil
}

// Free gives all buffers back.
func (a *Arena) Free() error {
	var err error
	for _, b := range a.buffers {
		err = errors.Join(err, a.env.give(b.base, b.Bytes+2*a.env.Guard, b.sparse()))
	}
	a.buffers = nil
	if a.huge {
		a.huge = false
		a.env.Huge.turn.Unlock()
	}
	return err
}

// CheckZero reports the first byte that is not zero among the first size: counters that a launch left dirty.
func (b *Buffer) CheckZero(size int64) error { return b.CheckZeroAt(0, size) }

// CheckZeroAt is the same from an offset.
func (b *Buffer) CheckZeroAt(offset, size int64) error {
	if size <= 0 {
		return nil
	}
	data, err := b.ReadAt(offset, min(size, b.Bytes-offset))
	if err != nil {
		return err
	}
	for i, x := range data {
		if x != 0 {
			return fmt.Errorf("buffer %q is not zero after the launch: byte %d is %#02x", b.Name, offset+int64(i), x)
		}
	}
	return nil
}

// Workspace returns a zeroed workspace of at least size bytes, one for all launches of a family in this environment: launches that
// leave it dirty break the next one (T6). Launches of one family share it, so they must not overlap.
func (e *Env) Workspace(family string, size int64) (*Buffer, error) {
	if b := e.workspaces[family]; b != nil && b.Bytes >= size {
		return b, nil
	}
	b, err := e.arena.Alloc("workspace of "+family, size)
	if err != nil {
		return nil, err
	}
	e.workspaces[family] = b
	return b, b.Fill(0)
}
