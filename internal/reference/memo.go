package reference

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"sync"
)

// Jacobi takes 40 ms for a page of 128 tokens, and one page is summarised again for every candidate and family that is checked on
// it. So the vectors of large pages are remembered by the content of the page.

type singularVectors struct{ v, sigma []float64 }

// memo is a bounded map. When it is full it forgets everything: specs are checked one after the other, and the next one has other
// pages.
type memo struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]singularVectors
	floats  int
}

// memoFloats bounds the memory: 128 MB.
const memoFloats = 16 << 20

var singular = memo{entries: map[[sha256.Size]byte]singularVectors{}}

func (m *memo) get(key [sha256.Size]byte) (singularVectors, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.entries[key]
	return s, ok
}

func (m *memo) put(key [sha256.Size]byte, s singularVectors) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.floats += len(s.v) + len(s.sigma); m.floats > memoFloats {
		clear(m.entries)
		m.floats = len(s.v) + len(s.sigma)
	}
	m.entries[key] = s
}

// singularKey is the content of d and the question asked of it.
func singularKey(d []float64, rows, cols, rank int) (key [sha256.Size]byte) {
	b := make([]byte, 0, 8*(len(d)+3))
	for _, n := range []int{rows, cols, rank} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	for _, x := range d {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	return sha256.Sum256(b)
}
