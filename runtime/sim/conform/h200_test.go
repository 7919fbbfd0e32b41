package conform

import (
	"errors"
	"os"
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
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("%s is not recorded yet: run KVLOOM_RECORD=1 go test ./runtime/sim/conform -run TestRecordHardware on an H200", vectorFile)
	}
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
	t.Logf("%d variants compared with %s, driver %s", compared, stored.Device, stored.Driver)
	if compared < len(Variants())*9/10 {
		t.Errorf("only %d of %d variants have a stored answer", compared, len(Variants()))
	}
}

// TestRecordHardware stores the answers of the GPU here, when KVLOOM_RECORD=1 asks for it.
func TestRecordHardware(t *testing.T) {
	if os.Getenv("KVLOOM_RECORD") != "1" {
		t.Skip("KVLOOM_RECORD=1 records the answers of the GPU")
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
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(vectorFile, data, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d answers of %s, %d bytes", len(v.Answers), v.Device, len(data))
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
