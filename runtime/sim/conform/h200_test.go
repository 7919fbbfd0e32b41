package conform

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim"
)

// vectorFile holds an H200's answers.
const vectorFile = "testdata/h200.json.gz"

// TestAgainstHardware compares the simulator with the stored answers of an H200.
func TestAgainstHardware(t *testing.T) {
	data, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	compared := 0
	for _, v := range Variants() {
		want, ok, err := stored.Of(&v)
		if err != nil {
			t.Error(err)
		}
		if !ok {
			continue
		}
		compared++
		got, err := v.Run(d)
		if err != nil {
			t.Error(err)
			continue
		}
		diff, err := v.Compare(d, want, got)
		if err != nil {
			t.Error(err)
		}
		if diff != "" {
			t.Error(diff)
		}
	}
	t.Logf("%d of %d variants compared with %s, driver %s", compared, len(Variants()), stored.Device, stored.Driver)
	if compared != len(Variants()) {
		t.Errorf("only %d of %d variants have a stored answer: record them again", compared, len(Variants()))
	}
}

// TestPackedSharedAtomics holds the one known fault of the recorded answers to its description: the upper halves are the old ones plus +0.
// Where this fails, the driver's compiler was mended: compare the pairs whole again.
func TestPackedSharedAtomics(t *testing.T) {
	data, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, v := range Variants() {
		if !v.Bound.LowHalf {
			continue
		}
		out, ok, err := stored.Of(&v)
		if !ok || err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		seen++
		in, sums := v.Inputs(), out[len(out)-1]
		for i, sum := range sums {
			old, got := values(v.In[0], in[0][i])[1], values(v.In[0], sum)[1]
			if old == old && (got != old || got == 0 && math.Signbit(got)) || old != old && got == got {
				t.Errorf("%s, thread %d: the upper half of %#x became that of %#x", v.Name, i, in[0][i], sum)
			}
		}
	}
	if seen != 4 {
		t.Errorf("%d variants are compared by their lower half, not 4", seen)
	}
}

// TestRecordHardware stores the answers of the GPU here, when KVLOOM_RECORD=1 asks for it or names a file for them, and logs where the
// simulator differs.
func TestRecordHardware(t *testing.T) {
	file := os.Getenv("KVLOOM_RECORD")
	switch file {
	case "":
		t.Skip("KVLOOM_RECORD=1, or =FILE, records the answers of the GPU")
	case "1":
		file = vectorFile
	}
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	v, errs := Record(func() (string, string) { i := d.Info(); return i.Name, i.DriverName }, func(x *Variant) ([][]uint64, error) { return x.Run(d) })
	for _, err := range errs {
		t.Errorf("refused: %v", err)
	}
	data, err := v.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d answers of %s in %s, %d bytes", len(v.Answers), v.Device, file, len(data))
	logDifferences(t, v)
}

// logDifferences lists the variants on which the simulator is not as good as the answers ask for.
func logDifferences(t *testing.T, v *Vectors) {
	t.Helper()
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, x := range Variants() {
		want, ok, err := v.Of(&x)
		if err != nil || !ok {
			continue
		}
		got, err := x.Run(d)
		if err != nil {
			t.Log(err)
			continue
		}
		if diff, err := x.Compare(d, want, got); diff != "" || err != nil {
			t.Log(diff, err)
		}
	}
}

// TestVectors round-trips answers, and finds an answer that is wrong in one bit.
func TestVectors(t *testing.T) {
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	v, errs := Record(func() (string, string) { return "sim", "" }, func(x *Variant) ([][]uint64, error) { return x.Run(d) })
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	data, err := v.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d answers in %d bytes", len(v.Answers), len(data))
	back, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range Variants() {
		want, ok, err := back.Of(&x)
		if !ok || err != nil {
			t.Fatalf("%s: %v", x.Name, err)
		}
		got, err := x.Run(device.Device(d))
		if err != nil {
			t.Fatal(err)
		}
		if diff, err := x.Compare(d, want, got); diff != "" || err != nil {
			t.Errorf("%s %v", diff, err)
		}
		got[0][Count/2] ^= 1 << (x.Out[0].Bits() - 1)
		if diff, _ := x.Compare(d, want, got); diff == "" && want[0][Count/2] != 0 && x.Bound == Exact {
			t.Errorf("%s: a flipped top bit is not found", x.Name)
		}
	}
}
