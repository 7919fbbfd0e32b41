package kernel

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/launch"
)

func encoded(t testing.TB) []byte {
	t.Helper()
	data, err := testBundle().Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestBundleRoundTrip(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test.kvloom")
	want := testBundle()
	if err := want.Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
	if a, b := encoded(t), encoded(t); !bytes.Equal(a, b) {
		t.Error("equal bundles give other bytes")
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the bundle: %v, %v", entries, err)
	}
}

// TestDamagedBundles is C9: whatever happened to the file, the error names it and the reason.
func TestDamagedBundles(t *testing.T) {
	good := encoded(t)
	headerEnd := prefixSize + int(binary.LittleEndian.Uint64(good[24:]))
	flipBits := func(at int, bits byte) []byte {
		b := bytes.Clone(good)
		b[at] ^= bits
		return b
	}
	flip := func(at int) []byte { return flipBits(at, 1) }
	for _, tc := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "the file is empty"},
		{"inside the magic", good[:5], "truncated"},
		{"inside the fixed part", good[:63], "truncated"},
		{"after the fixed part", good[:64], "truncated"},
		{"inside the header", good[:headerEnd-1], "truncated"},
		{"at the header's end", good[:headerEnd], "truncated"},
		{"inside the code", good[:len(good)-10], "truncated"},
		{"one byte short", good[:len(good)-1], "truncated"},
		{"one byte more", append(bytes.Clone(good), 0), "its header says"},
		{"text", []byte("#!/bin/sh\nexit 1\n"), "not a kvloom bundle"},
		{"flip in the magic", flip(3), "not a kvloom bundle"},
		{"an older format by a flip", flipBits(8, 2), "checksum"},
		{"flip in the reserved word", flip(12), "checksum"},
		{"flip in the size", flip(16), ""},
		{"flip in the header's size", flip(24), "checksum"},
		{"flip in the checksum", flip(40), "checksum"},
		{"flip in the header", flip(100), "checksum"},
		{"flip in the code", flip(len(good) - 3), "checksum"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "damaged.kvloom")
			if err := os.WriteFile(file, tc.data, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := Open(file)
			contains(t, tc.name, err, file, tc.want)
			var d *Damaged
			if !errors.As(err, &d) {
				t.Errorf("got %T, want *Damaged", err)
			}
		})
	}
	weights := filepath.Join(t.TempDir(), "weights.safetensors")
	if err := os.WriteFile(weights, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(weights, maxFile+1); err != nil { // sparse: it takes no space
		t.Skip(err)
	}
	_, err := Open(weights)
	contains(t, "a file of another kind", err, weights, "no bundle has more than")
	_, err = Open(filepath.Join(t.TempDir(), "none.kvloom"))
	contains(t, "no file", err, "open bundle", "none.kvloom")
}

// TestEveryBitCounts flips each bit of a bundle in turn.
func TestEveryBitCounts(t *testing.T) {
	data := encoded(t)
	for i := range data {
		for bit := range 8 {
			data[i] ^= 1 << bit
			if _, err := decode(data); err == nil {
				t.Fatalf("bit %d of byte %d may be flipped unseen", bit, i)
			}
			data[i] ^= 1 << bit
		}
	}
	for n := range data {
		if _, err := decode(data[:n]); err == nil {
			t.Fatalf("the first %d bytes pass for a bundle", n)
		}
	}
}

func TestNewerFormatIsRefusedByName(t *testing.T) {
	data := encoded(t)
	binary.LittleEndian.PutUint32(data[8:], 7)
	file := filepath.Join(t.TempDir(), "newer.kvloom")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Open(file)
	var n *NewerFormat
	if !errors.As(err, &n) || n.Format != 7 || n.Highest != formatNow {
		t.Errorf("got %v", err)
	}
	contains(t, "newer", err, file, "format version 7", "reads up to 2")
}

func TestWriteRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(b *Bundle)
		want   string
	}{
		{"no works", func(b *Bundle) { b.Works = nil }, "no work"},
		{"unknown work", func(b *Bundle) { b.Works[0].Name = "page_scare" }, "no such work"},
		{"kernel out of range", func(b *Bundle) { b.Works[1].Points[0].Kernel = 99 }, "kernel 99"},
		{"kernel of another family", func(b *Bundle) { b.Works[1].Default = 0 }, "a kernel of page_summary"},
		{"no code", func(b *Bundle) { b.Kernels[1].PTX = nil }, "neither cubin nor PTX"},
		{"portable form without PTX", func(b *Bundle) { b.Works[0].Portable = 0; b.Kernels[0].PTX = nil }, "no PTX"},
		{"division by zero", func(b *Bundle) { b.Kernels[0].Geometry.Grid[0].Per = 0 }, "impossible extent"},
		{"unknown quantity", func(b *Bundle) { b.Kernels[0].Geometry.Grid[0].Of[0] = "moons" }, "moons"},
		{"first kernel without a name", func(b *Bundle) { b.Kernels[0].Geometry.First = &launch.First{Block: 256} }, "impossible first kernel"},
		{"first kernel without counters", func(b *Bundle) {
			b.Kernels[0].Geometry.First = &launch.First{Entry: "a", Block: 256, Counters: 9}
		}, "impossible first kernel"},
		{"block of 2000", func(b *Bundle) { b.Kernels[0].Geometry.Block = 2000 }, "2000 threads"},
		{"workload twice", func(b *Bundle) { b.Works[1].Points[1].Workload = b.Works[1].Points[0].Workload }, "twice"},
		{"page size 512 is fine, 0 is not", func(b *Bundle) { b.Model.PageSize = 0 }, "page_size is 0"},
		{"uneven group", func(b *Bundle) { b.Model.KVHeads = 5 }, "do not divide"},
		{"NaN among the evidence", func(b *Bundle) { b.Works[1].Points[0].Evidence.MedianUS = math.NaN() }, "NaN"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := testBundle()
			tc.change(b)
			file := filepath.Join(t.TempDir(), "x.kvloom")
			contains(t, tc.name, b.Write(file), tc.want)
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("something was left behind: %v", err)
			}
		})
	}
}

// FuzzDecode: no bytes make the reader panic.
func FuzzDecode(f *testing.F) {
	f.Add(encoded(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		if b, err := decode(data); err == nil {
			use(t, b)
		}
	})
}

// FuzzHeader puts the header behind a right checksum, where FuzzDecode would hardly come.
func FuzzHeader(f *testing.F) {
	data := encoded(f)
	n := prefixSize + int(binary.LittleEndian.Uint64(data[24:]))
	blobs := data[n:]
	f.Add(data[prefixSize:n])
	var h map[string]any
	if err := json.Unmarshal(data[prefixSize:n], &h); err != nil {
		f.Fatal(err)
	}
	for key := range h {
		was := h[key]
		for _, v := range []any{nil, -1, "x", []any{}, []any{nil}, map[string]any{}} {
			h[key] = v
			text, err := json.Marshal(h)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
		h[key] = was
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if b, err := parse(text, blobs); err == nil {
			use(t, b)
		}
	})
}

// use does with a bundle what a program does: nothing of it may panic.
func use(t *testing.T, b *Bundle) {
	d := &fakeDevice{info: h200}
	s, err := b.Load(d)
	if err != nil {
		return
	}
	for _, name := range workNames {
		_, _ = s.Lookup(name, Workload{1000, 3})
		_, _ = s.WorkspaceBytes(name, s.ProblemOf(3, 8, 100, 1))
	}
	a := selectArgs()
	_ = s.PageSelect(nil, &a, Workload{1600, 2})
}

// TestCalibrations: a bundle hands on what it was given of each layer, and refuses what does not fit its model.
func TestCalibrations(t *testing.T) {
	b := testBundle()
	weights := bytes.Repeat([]byte{1, 2, 3, 4}, int(WeightBytes(8, 128))/4)
	means := bytes.Repeat([]byte{5, 6, 7, 8}, 8*128)
	b.Calibrations = []Calibration{{weights, means}, {weights, nil}, {nil, means}}
	data, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.Calibrations, got.Calibrations); diff != "" {
		t.Errorf("(-written +read):\n%.300s", diff)
	}
	for _, tc := range []struct {
		reason, want string
		c            Calibration
		basis        string
	}{
		{"of another model", "weights of 8 bytes", Calibration{weights[:8], nil}, ""},
		{"of another model", "mean keys of 8 bytes", Calibration{nil, means[:8]}, ""},
		{"summaries would read what is not there", "no weights", Calibration{nil, means}, "query_weighted"},
	} {
		b.Calibrations, b.Model.Basis = []Calibration{tc.c}, tc.basis
		_, err := b.Encode()
		contains(t, tc.reason, err, "calibration of layer 0", tc.want)
	}
}
