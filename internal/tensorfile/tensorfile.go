// Package tensorfile reads and writes the subset of safetensors that kvloom needs: dense BF16, F16 and F32 tensors and the string
// metadata. The format: 8 bytes little-endian header length, a JSON header, the tensors' bytes.
package tensorfile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sort"

	"github.com/kvloom/kvloom/internal/wholefile"
)

// maxHeader is the largest header that the format allows: 100 MB.
const maxHeader = 100 << 20

// Tensor is one dense tensor, C order, its bytes little-endian.
type Tensor struct {
	Name  string
	DType string // "BF16", "F16", "F32"
	Shape []int
	Data  []byte
}

// File is the content of one safetensors file.
type File struct {
	Metadata map[string]string
	Tensors  []Tensor // by name, ascending
}

// Elements is the product of the shape.
func (t Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bits16 returns the bit patterns of a BF16 or F16 tensor.
func (t Tensor) Bits16() ([]uint16, error) {
	if size(t.DType) != 2 {
		return nil, fmt.Errorf("tensor %q holds %s, not 16-bit floats", t.Name, t.DType)
	}
	bits := make([]uint16, len(t.Data)/2)
	for i := range bits {
		bits[i] = binary.LittleEndian.Uint16(t.Data[2*i:])
	}
	return bits, nil
}

// FromBits16 makes a tensor of 16-bit patterns.
func FromBits16(name, dtype string, shape []int, bits []uint16) Tensor {
	t := Tensor{Name: name, DType: dtype, Shape: shape, Data: make([]byte, 2*len(bits))}
	for i, b := range bits {
		binary.LittleEndian.PutUint16(t.Data[2*i:], b)
	}
	return t
}

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, error) {
	for _, t := range f.Tensors {
		if t.Name == name {
			return t, nil
		}
	}
	var names []string
	for _, t := range f.Tensors {
		names = append(names, t.Name)
	}
	return Tensor{}, fmt.Errorf("no tensor %q; there are %q", name, names)
}

// size is the bytes of one element, 0 for a dtype outside the subset.
func size(dtype string) int {
	switch dtype {
	case "BF16", "F16":
		return 2
	case "F32":
		return 4
	}
	return 0
}

type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// Read loads a file.
func Read(path string) (*File, error) { return read(path, os.ReadFile) }

// ReadFS loads a file of a file system, such as embedded test data.
func ReadFS(fsys fs.FS, path string) (*File, error) {
	return read(path, func(p string) ([]byte, error) { return fs.ReadFile(fsys, p) })
}

func read(path string, load func(string) ([]byte, error)) (*File, error) {
	data, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("read tensors: %w", err)
	}
	f, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("read tensors from %s: %w", path, err)
	}
	return f, nil
}

// Decode parses a whole file. Tensors share data's memory.
func Decode(data []byte) (*File, error) {
	if len(data) < 8 {
		return nil, fmt.Errorf("%d bytes are too few for a safetensors header", len(data))
	}
	n := binary.LittleEndian.Uint64(data)
	if n > maxHeader || n > uint64(len(data)-8) {
		return nil, fmt.Errorf("the header claims %d bytes of a file of %d: not safetensors, or truncated", n, len(data))
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(data[8:8+n], &header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	body := data[8+n:]
	f := &File{Metadata: map[string]string{}}
	for name, raw := range header {
		if name == "__metadata__" {
			if err := json.Unmarshal(raw, &f.Metadata); err != nil {
				return nil, fmt.Errorf("__metadata__: %w", err)
			}
			continue
		}
		t, err := decodeTensor(name, raw, body)
		if err != nil {
			return nil, err
		}
		f.Tensors = append(f.Tensors, t)
	}
	sort.Slice(f.Tensors, func(i, j int) bool { return f.Tensors[i].Name < f.Tensors[j].Name })
	return f, nil
}

func decodeTensor(name string, raw json.RawMessage, body []byte) (Tensor, error) {
	var e entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return Tensor{}, fmt.Errorf("tensor %q: %w", name, err)
	}
	bytes := int64(size(e.DType))
	if bytes == 0 {
		return Tensor{}, fmt.Errorf("tensor %q has dtype %q; BF16, F16 and F32 are read", name, e.DType)
	}
	for _, d := range e.Shape {
		// Dividing the body's length keeps a hostile shape from overflowing the product.
		if d < 0 || d > 0 && bytes > int64(len(body))/int64(d) {
			return Tensor{}, fmt.Errorf("tensor %q of shape %v does not fit into the file: truncated?", name, e.Shape)
		}
		bytes *= int64(d)
	}
	begin, end := e.Offsets[0], e.Offsets[1]
	if begin < 0 || end > int64(len(body)) || end-begin != bytes || begin > end {
		return Tensor{}, fmt.Errorf("tensor %q of %d bytes claims offsets %d to %d of %d bytes", name, bytes, begin, end, len(body))
	}
	return Tensor{Name: name, DType: e.DType, Shape: e.Shape, Data: body[begin:end:end]}, nil
}

// Encode lays the file out: tensors by name, the body aligned to 8 bytes.
func (f *File) Encode() ([]byte, error) {
	tensors := slices.Clone(f.Tensors)
	sort.SliceStable(tensors, func(i, j int) bool { return tensors[i].Name < tensors[j].Name })
	header := map[string]any{}
	if len(f.Metadata) > 0 {
		header["__metadata__"] = f.Metadata
	}
	var at int64
	for _, t := range tensors {
		if _, twice := header[t.Name]; twice || t.Name == "__metadata__" {
			return nil, fmt.Errorf("two tensors called %q", t.Name)
		}
		if want := t.Elements() * size(t.DType); size(t.DType) == 0 || len(t.Data) != want {
			return nil, fmt.Errorf("tensor %q of %s %v needs %d bytes, has %d", t.Name, t.DType, t.Shape, want, len(t.Data))
		}
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		header[t.Name] = entry{t.DType, shape, [2]int64{at, at + int64(len(t.Data))}}
		at += int64(len(t.Data))
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	out = append(out, text...)
	for _, t := range tensors {
		out = append(out, t.Data...)
	}
	return out, nil
}

// Write stores the file; a reader sees all of it or nothing.
func (f *File) Write(path string) error {
	data, err := f.Encode()
	if err != nil {
		return fmt.Errorf("write tensors to %s: %w", path, err)
	}
	if err := wholefile.Write(path, data); err != nil {
		return fmt.Errorf("tensors: %w", err)
	}
	return nil
}
