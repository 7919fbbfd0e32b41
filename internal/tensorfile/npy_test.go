package tensorfile

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// npy is a file as numpy.save writes it, version 1.
func npy(descr, order, shape string, body []byte) []byte {
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", descr, order, shape)
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	data := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(header)))
	return append(append(data, header...), body...)
}

func TestReadNPY(t *testing.T) {
	var half, single, double []byte
	for _, bits := range []uint16{0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000, 0x7c00} {
		half = binary.LittleEndian.AppendUint16(half, bits)
	}
	for _, x := range []float64{1.5, -2} {
		single = binary.LittleEndian.AppendUint32(single, math.Float32bits(float32(x)))
		double = binary.LittleEndian.AppendUint64(double, math.Float64bits(x))
	}
	for _, tt := range []struct {
		name, reason string
		data         []byte
		want         Array
		fault        string
	}{
		{"half", "normal, subnormal, largest, zero, infinite", npy("<f2", "False", "(2, 3)", half),
			Array{"<f2", []int{2, 3}, []float64{1, -2, 0x1p-24, 65504, 0, math.Inf(1)}}, ""},
		{"single", "one dimension has a comma of its own", npy("<f4", "False", "(2,)", single), Array{"<f4", []int{2}, []float64{1.5, -2}}, ""},
		{"double", "", npy("<f8", "False", "(1, 2)", double), Array{"<f8", []int{1, 2}, []float64{1.5, -2}}, ""},
		{"integers", "no floats", npy("<i4", "False", "(2,)", single), Array{}, `dtype "<i4"`},
		{"columns", "the order would be wrong", npy("<f4", "True", "(1, 2)", single), Array{}, "Fortran order"},
		{"short", "truncated", npy("<f4", "False", "(3,)", single), Array{}, "needs 12 bytes"},
		{"hostile", "the product would overflow", npy("<f4", "False", "(4611686018427387904, 4)", single), Array{}, "does not fit"},
		{"other", "not numpy's", []byte("PK\x03\x04 something"), Array{}, "no .npy file"},
	} {
		path := filepath.Join(t.TempDir(), "a.npy")
		if err := os.WriteFile(path, tt.data, 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := ReadNPY(path)
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v; want the path and %q: %s", tt.name, err, tt.fault, tt.reason)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", tt.name, err, diff)
		}
	}
}
