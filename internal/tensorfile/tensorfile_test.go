package tensorfile

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = "../../testdata/smollm2/sample_needle_layer09.safetensors"

func TestReadSample(t *testing.T) {
	f, err := Read(sample)
	if err != nil {
		t.Fatal(err)
	}
	shapes := map[string][]int{}
	for _, tensor := range f.Tensors {
		shapes[tensor.Name] = tensor.Shape
	}
	if diff := cmp.Diff(map[string][]int{"k": {3, 1024, 64}, "v": {3, 1024, 64}, "q_last": {9, 16, 64}}, shapes); diff != "" {
		t.Error(diff)
	}
	if f.Metadata["layer"] != "9" || f.Metadata["first_token"] != "7168" {
		t.Errorf("metadata %v", f.Metadata)
	}
}

func TestRoundTrip(t *testing.T) {
	in := &File{Metadata: map[string]string{"a": "b"}, Tensors: []Tensor{
		FromBits16("k", "BF16", []int{2, 2}, []uint16{1, 2, 3, 0xffff}),
		{Name: "empty", DType: "F32", Shape: []int{0, 3}, Data: []byte{}},
		{Name: "scalar", DType: "F32", Shape: []int{}, Data: []byte{0, 0, 128, 63}},
	}}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := in.Write(path); err != nil {
		t.Fatal(err)
	}
	out, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := out.Tensor("k")
	if err != nil {
		t.Fatal(err)
	}
	bits, err := k.Bits16()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint16{1, 2, 3, 0xffff}, bits); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(in.Metadata, out.Metadata); diff != "" || len(out.Tensors) != 3 {
		t.Errorf("%s, %d tensors", diff, len(out.Tensors))
	}
}

func TestBadFiles(t *testing.T) {
	good, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	with := func(header string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	}
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "too few"},
		{"truncated header", good[:50], "truncated"},
		{"truncated body", good[:len(good)/2], "offsets"},
		{"huge header", []byte("\xff\xff\xff\xff\xff\xff\xff\x7f"), "truncated"},
		{"not json", with("{"), "header"},
		{"overflowing shape", with(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`), "does not fit"},
		{"negative dim", with(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}`), "does not fit"},
		{"unknown dtype", with(`{"a":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}`), "BF16, F16 and F32"},
		{"offsets backwards", with(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}`), "offsets"},
	}
	for _, tt := range tests {
		if _, err := Decode(tt.data); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	small, _ := (&File{Tensors: []Tensor{FromBits16("k", "BF16", []int{2}, []uint16{1, 2})}}).Encode()
	f.Add(small)
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Decode(data)
		if err != nil {
			return
		}
		for _, tensor := range file.Tensors {
			if len(tensor.Data) != tensor.Elements()*size(tensor.DType) {
				t.Fatalf("%+v", tensor)
			}
		}
	})
}
