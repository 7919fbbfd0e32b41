package device

// TensorMap is an opaque description of a tensor in global memory for bulk tensor copies. A kernel takes it by value, 64-byte
// aligned, as __grid_constant__. Each backend has its own encoding: a map works on the device that made it.
type TensorMap [128]byte

// Swizzle is how 16-byte units are permuted in shared memory.
type Swizzle uint8

// The swizzles: none, and exclusive or within 32, 64 and 128 bytes.
const (
	NoSwizzle Swizzle = iota
	Swizzle32
	Swizzle64
	Swizzle128
)

// TensorSpec describes a tensor and the box that one copy moves, fastest dimension first.
type TensorSpec struct {
	Base         Ptr      // 16-byte aligned
	ElementBytes int      // 1, 2, 4 or 8
	Dims         []uint64 // elements, 1 to 5 dimensions
	Strides      []uint64 // bytes, of dimensions 1 and up: multiples of 16
	Box          []uint32 // elements, at most 256 each
	Swizzle      Swizzle
}

// TensorMapper is implemented by devices that can make tensor maps.
type TensorMapper interface {
	NewTensorMap(s TensorSpec) (TensorMap, error)
}
