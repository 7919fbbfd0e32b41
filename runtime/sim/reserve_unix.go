//go:build unix

package sim

import (
	"syscall"
)

// bigAlloc is where memory comes from the operating system, which gives pages as they are touched.
const bigAlloc = 1 << 20

// reserve returns zeroed memory of a size, 256-byte aligned.
func reserve(size int64) (b []byte, big bool, err error) {
	if size < bigAlloc {
		return aligned(size), false, nil
	}
	b, err = syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|mapNoReserve)
	return b, true, err
}

func release(b []byte) error { return syscall.Munmap(b) }
