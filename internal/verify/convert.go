package verify

import (
	"encoding/binary"
	"math"

	"github.com/kvloom/kvloom/internal/reference"
)

// Int32s decodes little-endian int32.
func Int32s(data []byte) []int32 {
	out := make([]int32, len(data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}

// Uint16s decodes little-endian uint16.
func Uint16s(data []byte) []uint16 {
	out := make([]uint16, len(data)/2)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(data[2*i:])
	}
	return out
}

// Float32s decodes little-endian float32.
func Float32s(data []byte) []float32 {
	out := make([]float32, len(data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}

// BytesOfInt32 encodes little-endian.
func BytesOfInt32(x []int32) []byte {
	out := make([]byte, 0, 4*len(x))
	for _, v := range x {
		out = binary.LittleEndian.AppendUint32(out, uint32(v))
	}
	return out
}

// BytesOfUint16 encodes little-endian.
func BytesOfUint16(x []uint16) []byte {
	out := make([]byte, 0, 2*len(x))
	for _, v := range x {
		out = binary.LittleEndian.AppendUint16(out, v)
	}
	return out
}

// bytesOfElements encodes bit patterns of a cache at the width of its elements.
func bytesOfElements(dtype reference.DType, x []uint16) []byte {
	if dtype.Size() == 2 {
		return BytesOfUint16(x)
	}
	out := make([]byte, len(x))
	for i, v := range x {
		out[i] = byte(v)
	}
	return out
}

// BytesOfFloat32 encodes little-endian.
func BytesOfFloat32(x []float32) []byte {
	out := make([]byte, 0, 4*len(x))
	for _, v := range x {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}
