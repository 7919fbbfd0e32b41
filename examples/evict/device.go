package main

import (
	"errors"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// memory is device memory of one run.
type memory struct {
	dev   device.Device
	owned []device.Ptr
	err   error // the first; later calls do nothing
}

// zeros allocates so many bytes of zeros; none is a null pointer.
func (m *memory) zeros(bytes int64) device.Ptr {
	if m.err != nil || bytes == 0 {
		return 0
	}
	p, err := m.dev.Alloc(bytes)
	if err == nil {
		m.owned = append(m.owned, p)
		err = m.dev.Fill(p, 0, bytes)
	}
	m.err = err
	return p
}

func upload[T uint16 | int32](m *memory, data []T) device.Ptr {
	p := m.zeros(int64(len(data)) * int64(unsafe.Sizeof(data[0])))
	if m.err == nil {
		m.err = m.dev.Write(p, asBytes(data))
	}
	return p
}

func (m *memory) free() error {
	var err error
	for _, p := range m.owned {
		err = errors.Join(err, m.dev.Free(p))
	}
	return err
}

func asBytes[T uint16 | int32 | float32](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// stages are the launches of one eviction, with what they write.
type stages struct {
	set      *kernel.Set
	stream   device.Stream
	workload kernel.Workload
	observe  *kernel.DropObserveArgs // nil where the rule needs none
	score    *kernel.DropScoreArgs
	pool     *kernel.DropPoolArgs
	allot    *kernel.DropAllotArgs // nil for uniform budgets
	choose   *kernel.DropSelectArgs
	compact  *kernel.DropCompactArgs
}

// launch enqueues them in order, pooling and selecting in one launch where that is there and faster: it allocates nothing and never waits, so a graph can hold it.
func (s *stages) launch() error {
	if s.observe != nil {
		if err := errors.Join(s.set.DropObserve(s.stream, s.observe, s.workload), s.set.DropScore(s.stream, s.score, s.workload)); err != nil {
			return err
		}
		if s.allot == nil && s.set.Pools(s.workload) {
			of := *s.choose
			of.Values = s.score.Scores
			return errors.Join(s.set.DropPoolSelect(s.stream, &of, s.workload), s.set.DropCompact(s.stream, s.compact, s.workload))
		}
		if err := s.set.DropPool(s.stream, s.pool, s.workload); err != nil {
			return err
		}
	}
	if s.allot != nil {
		if err := s.set.DropAllot(s.stream, s.allot, s.workload); err != nil {
			return err
		}
	}
	return errors.Join(s.set.DropSelect(s.stream, s.choose, s.workload), s.set.DropCompact(s.stream, s.compact, s.workload))
}

// capture runs the launches once, then makes a graph of them.
func (s *stages) capture() (device.Graph, error) {
	if err := errors.Join(s.launch(), s.stream.Synchronize()); err != nil {
		return nil, err
	}
	if err := s.stream.BeginCapture(); err != nil {
		return nil, err
	}
	err := s.launch()
	g, endErr := s.stream.EndCapture()
	return g, errors.Join(err, endErr)
}
