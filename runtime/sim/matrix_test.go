package sim_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/runtime/sim/conform"
	"github.com/kvloom/kvloom/runtime/sim/num"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// fragment says where element i of a lane's fragment lies, as the figures of the PTX ISA put it, one formula a shape and operand.
type fragment func(lane, i int) (row, col int)

// layoutOf are the ISA's formulas for A (row-major) and B (column-major) by shape and element width; C and D are the same for all.
var layoutOf = map[string]struct{ a, b fragment }{
	"m16n8k8 16": {
		func(l, i int) (int, int) { return pick(i < 2, l/4, l/4+8), l%4*2 + i%2 },
		func(l, i int) (int, int) { return l%4*2 + i, l / 4 },
	},
	"m16n8k16 16": {
		func(l, i int) (int, int) {
			return pick(i < 2 || i >= 4 && i < 6, l/4, l/4+8), pick(i < 4, l%4*2+i%2, l%4*2+i%2+8)
		},
		func(l, i int) (int, int) { return pick(i < 2, l%4*2+i%2, l%4*2+i%2+8), l / 4 },
	},
	"m16n8k4 32": {
		func(l, i int) (int, int) { return pick(i == 0, l/4, l/4+8), l % 4 },
		func(l, i int) (int, int) { return l % 4, l / 4 },
	},
	"m16n8k8 32": {
		func(l, i int) (int, int) { return pick(i == 0 || i == 2, l/4, l/4+8), pick(i < 2, l%4, l%4+4) },
		func(l, i int) (int, int) { return pick(i == 0, l%4, l%4+4), l / 4 },
	},
	"m16n8k16 8": {
		func(l, i int) (int, int) { return pick(i < 4, l/4, l/4+8), l%4*4 + i%4 },
		func(l, i int) (int, int) { return l%4*4 + i%4, l / 4 },
	},
	"m16n8k32 8": {
		func(l, i int) (int, int) {
			return pick(i < 4 || i >= 8 && i < 12, l/4, l/4+8), pick(i < 8, l%4*4+i%4, l%4*4+i%4+16)
		},
		func(l, i int) (int, int) { return pick(i < 4, l%4*4+i%4, l%4*4+i%4+16), l / 4 },
	},
	"m16n8k32 4": {
		func(l, i int) (int, int) { return pick(i < 8, l/4, l/4+8), l%4*8 + i%8 },
		func(l, i int) (int, int) { return l%4*8 + i%8, l / 4 },
	},
	"m16n8k64 4": {
		func(l, i int) (int, int) {
			return pick(i < 8 || i >= 16 && i < 24, l/4, l/4+8), pick(i < 16, l%4*8+i%8, l%4*8+i%8+32)
		},
		func(l, i int) (int, int) { return pick(i < 8, l%4*8+i%8, l%4*8+i%8+32), l / 4 },
	},
}

func pick(c bool, a, b int) int {
	if c {
		return a
	}
	return b
}

func accumulator(l, i int) (int, int) { return pick(i < 2, l/4, l/4+8), l%4*2 + i%2 }

// codec encodes a number as an element.
type codec struct {
	bits   int
	random func(r *rand.Rand) (float64, uint32)
}

func signedCodec(bits int) codec {
	return codec{bits, func(r *rand.Rand) (float64, uint32) {
		v := r.IntN(1<<bits) - 1<<(bits-1)
		return float64(v), uint32(v) & (1<<bits - 1)
	}}
}

func unsignedCodec(bits int) codec {
	return codec{bits, func(r *rand.Rand) (float64, uint32) { v := r.IntN(1 << bits); return float64(v), uint32(v) }}
}

var codecs = map[string]codec{
	"f16": {16, func(r *rand.Rand) (float64, uint32) {
		b := num.ToHalf(r.NormFloat64(), num.RN)
		return float64(num.Half(b)), uint32(b)
	}},
	"bf16": {16, func(r *rand.Rand) (float64, uint32) {
		b := num.ToBF16(r.NormFloat64(), num.RN)
		return float64(num.BF16(b)), uint32(b)
	}},
	"tf32": {32, func(r *rand.Rand) (float64, uint32) {
		b := num.TF32(float32(r.NormFloat64()), num.RN)
		return float64(math.Float32frombits(b)), b
	}},
	"e4m3": {8, func(r *rand.Rand) (float64, uint32) {
		b := num.ToE4M3(r.NormFloat64())
		return float64(num.E4M3(b)), uint32(b)
	}},
	"e5m2": {8, func(r *rand.Rand) (float64, uint32) {
		b := num.ToE5M2(r.NormFloat64())
		return float64(num.E5M2(b)), uint32(b)
	}},
	"s8": signedCodec(8), "u8": unsignedCodec(8), "s4": signedCodec(4), "u4": unsignedCodec(4),
}

// TestMMA compares every shape with the plain matrix product, through the ISA's own layout formulas.
func TestMMA(t *testing.T) {
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, tc := range []struct {
		shape, d, a, b string
		k              int
	}{
		{"m16n8k8", "f32", "f16", "f16", 8}, {"m16n8k16", "f32", "f16", "f16", 16}, {"m16n8k16", "f16", "f16", "f16", 16}, {"m16n8k8", "f16", "f16", "f16", 8},
		{"m16n8k8", "f32", "bf16", "bf16", 8}, {"m16n8k16", "f32", "bf16", "bf16", 16}, {"m16n8k4", "f32", "tf32", "tf32", 4}, {"m16n8k8", "f32", "tf32", "tf32", 8},
		{"m16n8k32", "f32", "e4m3", "e5m2", 32}, {"m16n8k16", "s32", "s8", "s8", 16}, {"m16n8k32", "s32", "s8", "u8", 32}, {"m16n8k32", "s32", "u8", "s8", 32},
		{"m16n8k32", "s32", "s4", "u4", 32}, {"m16n8k64", "s32", "u4", "s4", 64},
	} {
		name := fmt.Sprintf("%s.%s.%s.%s", tc.shape, tc.d, tc.a, tc.b)
		t.Run(name, func(t *testing.T) {
			m := newProduct(tc.a, tc.b, tc.d, tc.k, rand.New(rand.NewPCG(1, uint64(tc.k))))
			l := layoutOf[fmt.Sprintf("%s %d", tc.shape, codecs[tc.a].bits)]
			v, in := m.variant(tc.shape, tc.d, tc.a, tc.b, l.a, l.b)
			out, err := v.RunOn(d, in)
			if err != nil {
				t.Fatal(err)
			}
			m.check(t, tc.d, out)
		})
	}
}

// product is a 16 x k by k x 8 product.
type product struct {
	k          int
	a, b, c    [][]float64 // [16][k], [k][8], [16][8]
	ab, bb, cb [][]uint32  // encoded
}

func newProduct(at, bt, dt string, k int, r *rand.Rand) *product {
	p := &product{k: k}
	p.a, p.ab = random(16, k, codecs[at], r)
	p.b, p.bb = random(k, 8, codecs[bt], r)
	acc := codec{32, func(r *rand.Rand) (float64, uint32) {
		f := float32(r.NormFloat64())
		return float64(f), math.Float32bits(f)
	}}
	switch dt {
	case "f16":
		acc = codecs["f16"]
	case "s32":
		acc = codec{32, func(r *rand.Rand) (float64, uint32) { v := int32(r.IntN(2000) - 1000); return float64(v), uint32(v) }}
	}
	p.c, p.cb = random(16, 8, acc, r)
	return p
}

func random(rows, cols int, c codec, r *rand.Rand) (values [][]float64, bits [][]uint32) {
	for i := range rows {
		values, bits = append(values, make([]float64, cols)), append(bits, make([]uint32, cols))
		for j := range cols {
			values[i][j], bits[i][j] = c.random(r)
		}
	}
	return values, bits
}

// pack lays a matrix out in fragments: [register][thread].
func pack(bits [][]uint32, width, regs int, at fragment) [][]uint64 {
	per := 32 / width
	out := make([][]uint64, regs)
	for j := range out {
		out[j] = make([]uint64, conform.Count)
		for t := range out[j] {
			for e := range per {
				row, col := at(t%32, j*per+e)
				out[j][t] |= uint64(bits[row][col]) << (e * width)
			}
		}
	}
	return out
}

func (p *product) variant(shape, dt, at, bt string, a, b fragment) (conform.Variant, [][]uint64) {
	width := codecs[at].bits
	na, nb, accBits := 16*p.k*width/1024, 8*p.k*width/1024, 32
	outType, nd := ptx.Type("f32"), 4
	if dt == "s32" {
		outType = "s32"
	}
	if dt == "f16" {
		outType, nd, accBits = "f16x2", 2, 16
	}
	var in [][]uint64
	in = append(in, pack(p.ab, width, na, a)...)
	in = append(in, pack(p.bb, width, nb, b)...)
	in = append(in, pack(p.cb, accBits, nd, accumulator)...)
	v := conform.Variant{Name: "mma"}
	names := func(letter string, from, n int) string {
		s := ""
		for i := range n {
			s += fmt.Sprintf(", %%%s%d", letter, from+i)
		}
		return "{" + s[2:] + "}"
	}
	for range na + nb {
		v.In = append(v.In, "b32")
	}
	for range nd {
		v.In, v.Out = append(v.In, outType), append(v.Out, outType)
	}
	v.Code = fmt.Sprintf("mma.sync.aligned.%s.row.col.%s.%s.%s.%s %s, %s, %s, %s;", shape, dt, at, bt, dt, names("d", 0, nd), names("a", 0, na), names("a", na, nb), names("a", na+nb, nd))
	return v, in
}

func (p *product) check(t *testing.T, dt string, out [][]uint64) {
	t.Helper()
	bad := 0
	for lane := range 32 {
		for i := range 4 {
			row, col := accumulator(lane, i)
			want, scale := p.c[row][col], math.Abs(p.c[row][col])
			for k := range p.k {
				want += p.a[row][k] * p.b[k][col]
				scale += math.Abs(p.a[row][k] * p.b[k][col])
			}
			var got, tolerance float64
			switch dt {
			case "s32":
				got = float64(int32(out[i][lane]))
			case "f32":
				got, tolerance = float64(math.Float32frombits(uint32(out[i][lane]))), 0x1p-23*scale
			default:
				got, tolerance = float64(num.Half(uint16(out[i/2][lane]>>(i%2*16)))), 0x1p-10*scale
			}
			if math.Abs(got-want) > tolerance {
				if bad++; bad < 4 {
					t.Errorf("element (%d, %d), lane %d register %d: want %g, got %g", row, col, lane, i, want, got)
				}
			}
		}
	}
}
