package sim

import "unsafe"

// aligned returns zeroed memory of a size on a 256-byte boundary.
func aligned(size int64) []byte {
	b := make([]byte, size+263)
	skip := -uintptr(unsafe.Pointer(&b[0])) & 255
	return b[skip : int64(skip)+size]
}
