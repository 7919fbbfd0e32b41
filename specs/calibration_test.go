package specs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/internal/tensorfile"
)

// writeCalibration writes what kvloom calibrate would of heads KV heads of a dim.
func writeCalibration(t *testing.T, path string, heads, dim int, mark string) {
	t.Helper()
	f := tensorfile.File{Metadata: map[string]string{"kvloom": mark, "queries": "16"}, Tensors: []tensorfile.Tensor{
		tensorfile.Float32("moments", []int{heads, dim, dim}, make([]float64, heads*dim*dim)),
		tensorfile.Float32("mean_key", []int{heads, dim}, make([]float64, heads*dim))}}
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
}

func TestCalibrations(t *testing.T) {
	dir := t.TempDir()
	writeCalibration(t, filepath.Join(dir, "a.safetensors"), 2, 64, "calibration")
	writeCalibration(t, filepath.Join(dir, "b.safetensors"), 2, 64, "calibration")
	writeCalibration(t, filepath.Join(dir, "heads.safetensors"), 4, 64, "calibration")
	writeCalibration(t, filepath.Join(dir, "other.safetensors"), 2, 64, "dump")
	for _, tc := range []struct {
		reason, locks, want string // want: of the error
		layers              int
	}{
		{"a file a layer, beside the spec", "{basis: query_weighted, calibration: [a.safetensors, b.safetensors]}", "", 2},
		{"a 4-bit centroid needs a mean key", "{centroid_bits: 4, calibration: [a.safetensors]}", "", 1},
		{"none", "{basis: query_weighted}", "", 0},
		{"nothing would read it", "{calibration: [a.safetensors]}", ":3:9: locks.calibration serves basis query_weighted and centroid_bits 4", 0},
		{"a list", "{basis: query_weighted, calibration: a.safetensors}", "is the text \"a.safetensors\"; want a list of text", 0},
		{"an empty list", "{basis: query_weighted, calibration: []}", "is an empty list", 0},
		{"a file that is not there", "{basis: query_weighted, calibration: [c.safetensors]}", ":3:32: locks.calibration: read tensors: open " + filepath.Join(dir, "c.safetensors"), 0},
		{"of another model", "{basis: query_weighted, calibration: [heads.safetensors]}", "is of 4 KV heads of dim 64, the spec has 2 of dim 64", 0},
		{"no calibration", "{basis: query_weighted, calibration: [other.safetensors]}", "other.safetensors is no calibration; kvloom calibrate makes one", 0},
	} {
		text := fmt.Sprintf("name: m\nattention: {query_heads: 4, kv_heads: 2, head_dim: 64}\nlocks: %s\n", tc.locks)
		file := filepath.Join(dir, "m.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Load(file)
		if tc.want != "" {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.reason, err)
			continue
		}
		if list, err := s.Calibrations(); err != nil || len(list) != tc.layers {
			t.Errorf("%s: %d layers, %v", tc.reason, len(list), err)
		}
	}
	if _, err := Parse("m.yaml", []byte("name: m\nattention: {query_heads: 4, kv_heads: 2, head_dim: 64}\nlocks: {basis: query_weighted, calibration: [nowhere]}\n")); err != nil {
		t.Errorf("from memory no file is looked at: %v", err)
	}
}
