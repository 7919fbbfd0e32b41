package quality

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
)

// layer is a file's tensors in float64.
type layer struct {
	keys, values, queries []float64 // [kv head, token, dim] twice, [q head, query, dim]
	kvHeads, qHeads       int
	tokens, last, dim     int
	scale                 float64
	theta                 float64 // of the rotary embedding; 0: unknown
	dtype                 reference.DType
	device                *onDevice // what kernels computed; nil: the reference computes
}

// scored is how many of the file's queries are measured when so many are asked for; 0: all.
func (l *layer) scored(asked int) int {
	if asked == 0 {
		return l.last
	}
	return min(asked, l.last)
}

// keysType is where open leaves the type of the keys among the metadata.
const keysType = "type of k"

// source reads one named tensor of a file or folder.
type source func(name string) ([]float64, [3]int, error)

// open opens a safetensors file, or a folder with k.npy, v.npy and q_last.npy, which has no metadata.
func open(path string) (source, map[string]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read tensors: %w", err)
	}
	if info.IsDir() {
		return func(name string) ([]float64, [3]int, error) {
			a, err := tensorfile.ReadNPY(filepath.Join(path, name+".npy"))
			if err != nil {
				return nil, [3]int{}, err
			}
			return checked(name, a.Data, a.Shape)
		}, nil, nil
	}
	f, err := tensorfile.Read(path)
	if err != nil {
		return nil, nil, err
	}
	if t, err := f.Tensor("k"); err == nil {
		if f.Metadata == nil {
			f.Metadata = map[string]string{}
		}
		f.Metadata[keysType] = t.DType
	}
	return func(name string) ([]float64, [3]int, error) { return decode(f, name) }, f.Metadata, nil
}

func load(path string) (*layer, error) {
	read, metadata, err := open(path)
	if err != nil {
		return nil, err
	}
	l := &layer{}
	var faults []error
	tensor := func(name string) ([]float64, [3]int) {
		x, shape, err := read(name)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", path, err))
		}
		return x, shape
	}
	var k, v, q [3]int
	l.keys, k = tensor("k")
	l.values, v = tensor("v")
	l.queries, q = tensor("q_last")
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	l.dtype = reference.BF16
	if metadata[keysType] == "F16" {
		l.dtype = reference.FP16
	}
	l.kvHeads, l.tokens, l.dim, l.qHeads, l.last = k[0], k[1], k[2], q[0], q[1]
	switch {
	case k != v:
		return nil, fmt.Errorf("%s: k is %v and v %v; both are [KV heads, tokens, dim]", path, k, v)
	case q[2] != l.dim || l.last > l.tokens || l.last < 1 || l.dim < 1:
		return nil, fmt.Errorf("%s: q_last is %v for keys %v; it is [query heads, last positions, dim]", path, q, k)
	case l.kvHeads < 1 || l.qHeads < 1 || l.qHeads%l.kvHeads != 0:
		return nil, fmt.Errorf("%s: %d query heads over %d KV heads: every KV head serves the same whole number of query heads", path, l.qHeads, l.kvHeads)
	}
	l.scale = 1 / math.Sqrt(float64(l.dim))
	if text, ok := metadata["softmax_scale"]; ok {
		if l.scale, err = strconv.ParseFloat(text, 64); err != nil {
			return nil, fmt.Errorf("%s: softmax_scale %q is no number", path, text)
		}
	}
	if text, ok := metadata["rope_theta"]; ok {
		if l.theta, err = strconv.ParseFloat(text, 64); err != nil {
			return nil, fmt.Errorf("%s: rope_theta %q is no number", path, text)
		}
	}
	return l, nil
}

// decode reads a tensor of a safetensors file.
func decode(f *tensorfile.File, name string) ([]float64, [3]int, error) {
	t, err := f.Tensor(name)
	if err != nil {
		return nil, [3]int{}, err
	}
	bits, err := t.Bits16()
	if err != nil {
		return nil, [3]int{}, err
	}
	d := reference.BF16
	if t.DType == "F16" {
		d = reference.FP16
	}
	out := make([]float64, len(bits))
	d.Values(out, bits)
	return checked(name, out, t.Shape)
}

// checked demands three dimensions and finite values.
func checked(name string, x []float64, shape []int) ([]float64, [3]int, error) {
	if len(shape) != 3 {
		return nil, [3]int{}, fmt.Errorf("tensor %q has %d dimensions, not 3", name, len(shape))
	}
	if slices.ContainsFunc(x, func(e float64) bool { return math.IsNaN(e) || math.IsInf(e, 0) }) {
		return nil, [3]int{}, fmt.Errorf("tensor %q holds values that are not finite; no mass is defined", name)
	}
	return x, [3]int(shape), nil
}
