package tensorfile

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Float32 makes an F32 tensor of rounded values.
func Float32(name string, shape []int, x []float64) Tensor {
	t := Tensor{Name: name, DType: "F32", Shape: shape, Data: make([]byte, 4*len(x))}
	for i, v := range x {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(float32(v)))
	}
	return t
}

// Float32s returns the values of an F32 tensor.
func (t Tensor) Float32s() ([]float64, error) {
	if t.DType != "F32" {
		return nil, fmt.Errorf("tensor %q holds %s, not F32", t.Name, t.DType)
	}
	out := make([]float64, len(t.Data)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:])))
	}
	return out, nil
}
