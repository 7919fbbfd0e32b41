package conform

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
)

// Vectors are the answers of one device.
type Vectors struct {
	Device  string            `json:"device"`
	Driver  string            `json:"driver"`
	Answers map[string]Answer `json:"answers"`
}

// Answer is a variant's output, little-endian 64-bit words, [slot][thread]. Hash is of the code and inputs it belongs to.
type Answer struct {
	Hash uint64 `json:"hash"`
	Out  []byte `json:"out"`
}

// Hash identifies the variant's code and inputs.
func (v *Variant) Hash() uint64 {
	h := fnv.New64a()
	io.WriteString(h, v.Text())
	for _, s := range v.Inputs() {
		for _, x := range s {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], x)
			h.Write(b[:])
		}
	}
	return h.Sum64()
}

// Add stores a variant's outputs.
func (v *Vectors) Add(x *Variant, out [][]uint64) {
	a := Answer{Hash: x.Hash()}
	for _, s := range out {
		for _, w := range s {
			a.Out = binary.LittleEndian.AppendUint64(a.Out, w)
		}
	}
	v.Answers[x.Name] = a
}

// Of returns the stored outputs of a variant; an answer to other code or inputs is an error.
func (v *Vectors) Of(x *Variant) (out [][]uint64, ok bool, err error) {
	a, ok := v.Answers[x.Name]
	if !ok {
		return nil, false, nil
	}
	if a.Hash != x.Hash() || len(a.Out) != len(x.Out)*Count*8 {
		return nil, false, fmt.Errorf("%s: the stored answer belongs to another form of the variant: record it again", x.Name)
	}
	for s := range x.Out {
		out = append(out, nil)
		for i := range Count {
			out[s] = append(out[s], binary.LittleEndian.Uint64(a.Out[(s*Count+i)*8:]))
		}
	}
	return out, true, nil
}

// Encode is the file format: gzipped JSON with sorted keys, so that equal vectors are equal files.
func (v *Vectors) Encode() ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(z).Encode(v); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Decode reads the file format.
func Decode(data []byte) (*Vectors, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("conformance vectors: %w", err)
	}
	v := &Vectors{}
	if err := json.NewDecoder(z).Decode(v); err != nil {
		return nil, fmt.Errorf("conformance vectors: %w", err)
	}
	return v, nil
}

// Record runs all variants on a device. Variants that it refuses are returned as errors and left out.
func Record(info func() (name, driver string), run func(*Variant) ([][]uint64, error)) (*Vectors, []error) {
	v := &Vectors{Answers: map[string]Answer{}}
	v.Device, v.Driver = info()
	var errs []error
	for _, x := range Variants() {
		out, err := run(&x)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		v.Add(&x, out)
	}
	return v, errs
}
