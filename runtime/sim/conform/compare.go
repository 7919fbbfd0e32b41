package conform

import (
	"fmt"
	"math"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim/num"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// Compare returns how got differs from want beyond the variant's bound, the first few threads only; "" where it does not. d runs the
// variant on the magnitudes of its inputs, where the bound depends on them.
func (v *Variant) Compare(d device.Device, want, got [][]uint64) (string, error) {
	var scale [][]uint64
	if v.Bound.Kind == "mma" {
		in := v.Inputs()
		for s, t := range v.In {
			for i := range in[s] {
				in[s][i] &^= signs(t)
			}
		}
		var err error
		if scale, err = v.RunOn(d, in); err != nil {
			return "", err
		}
	}
	report, bad := "", 0
	in := v.Inputs()
	for s, t := range v.Out {
		for i := range want[s] {
			m := uint64(0)
			if scale != nil {
				m = scale[s][i]
			}
			if v.Bound.accepts(t, want[s][i], got[s][i], m) {
				continue
			}
			if bad++; bad <= 3 {
				args := ""
				for k := range in {
					args += fmt.Sprintf(" %#x", in[k][i])
				}
				report += fmt.Sprintf("\n  thread %d, output %d: want %#x, got %#x, of inputs%s", i, s, want[s][i], got[s][i], args)
			}
		}
	}
	if bad == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s: %d values differ (%s %g)%s", v.Name, bad, v.Bound.Kind, v.Bound.Value, report), nil
}

// signs are the sign bits of a type's elements; b32 matrices are 8-bit floats.
func signs(t ptx.Type) uint64 {
	switch t {
	case "f16x2", "bf16x2":
		return 0x80008000
	case "f32", "tf32":
		return 1 << 31
	case "b32":
		return 0x80808080
	}
	return 0
}

// values splits an output into floating-point numbers.
func values(t ptx.Type, v uint64) []float64 {
	switch t {
	case "f32":
		return []float64{float64(math.Float32frombits(uint32(v)))}
	case "f64":
		return []float64{math.Float64frombits(v)}
	case "f16":
		return []float64{float64(num.Half(uint16(v)))}
	case "bf16":
		return []float64{float64(num.BF16(uint16(v)))}
	case "f16x2":
		return []float64{float64(num.Half(uint16(v))), float64(num.Half(uint16(v >> 16)))}
	case "bf16x2":
		return []float64{float64(num.BF16(uint16(v))), float64(num.BF16(uint16(v >> 16)))}
	}
	return nil
}

// accepts reports whether got is as good as want. scale is sum |ab| + |c|, for mma.
func (b Bound) accepts(t ptx.Type, want, got, scale uint64) bool {
	if want == got || b.LowHalf && uint16(want) == uint16(got) {
		return true
	}
	x, y := values(t, want), values(t, got)
	if x == nil || b.Kind == "exact" && !b.AnyNaN {
		return false
	}
	m := values(t, scale)
	for i := range x {
		if !b.near(x[i], y[i], m[i]) {
			return false
		}
	}
	return true
}

func (b Bound) near(want, got, scale float64) bool {
	if want == got || want != want && got != got {
		return want != want || b.Kind != "exact" || math.Signbit(want) == math.Signbit(got)
	}
	if math.IsInf(want, 0) || math.IsInf(got, 0) || want != want || got != got {
		return false
	}
	d := math.Abs(want - got)
	switch b.Kind {
	case "ulp":
		ulp := float64(math.Nextafter32(float32(math.Abs(want)), math.MaxFloat32)) - math.Abs(float64(float32(want)))
		return d <= b.Value*ulp
	case "relative":
		return d <= b.Value*math.Abs(want)
	case "absolute":
		return d <= b.Value
	case "absolute or relative":
		return d <= b.Value*max(1, math.Abs(want))
	case "mma":
		return d <= float64(b.K)*b.Value*scale
	}
	return false
}
