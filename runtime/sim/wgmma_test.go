package sim_test

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/runtime/sim/num"
)

//go:embed testdata/wgmma.cu
var wgmmaSource string

// TestWGMMA compares products through shared-memory descriptors with the plain product: each swizzle, operands with contiguous k and
// transposed ones, and A in registers. The operands arrive by bulk tensor copies, so that their swizzles must agree as well.
func TestWGMMA(t *testing.T) {
	text := nvrtctest.Compile(t, render.Source{Name: "wgmma.cu", Text: wgmmaSource, Entry: "k128", Arch: "sm_90a", Hash: wgmmaSource}).PTX
	for _, tc := range []struct {
		kernel   string
		swizzle  device.Swizzle
		ta, tb   bool
		sanitize bool
	}{
		{"k128", device.Swizzle128, false, false, true}, {"k64", device.Swizzle64, false, false, false}, {"k32", device.Swizzle32, false, false, false}, {"k16", device.NoSwizzle, false, false, false},
		{"b128", device.Swizzle128, false, true, true}, {"b64", device.Swizzle64, false, true, false}, {"b32", device.Swizzle32, false, true, false}, {"b16", device.NoSwizzle, false, true, false},
		{"ab128", device.Swizzle128, true, true, false}, {"ab64", device.Swizzle64, true, true, false}, {"ab16", device.NoSwizzle, true, true, false},
		{"r128", device.Swizzle128, false, false, false}, {"rb64", device.Swizzle64, false, true, false},
	} {
		t.Run(tc.kernel, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Sanitize: tc.sanitize})
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			x := &wgmmaRun{t: t, dev: dev}
			r := rand.New(rand.NewPCG(5, 6))
			a, aPtr := x.matrix(r, tc.ta) // a[row][k]
			b, bPtr := x.matrix(r, tc.tb) // b[column][k]
			out := x.alloc(make([]byte, 64*64*4))
			args := struct {
				a, b device.TensorMap
				d    device.Ptr
				raw  device.Ptr
				_    [48]byte
			}{x.tensor(aPtr, tc.swizzle), x.tensor(bPtr, tc.swizzle), out, aPtr, [48]byte{}}
			x.run(text, tc.kernel, unsafe.Pointer(&args), unsafe.Sizeof(args))
			got := make([]byte, 64*64*4)
			if err := dev.Read(got, out); err != nil {
				t.Fatal(err)
			}
			bad := 0
			for i := range 64 {
				for j := range 64 {
					want, scale := 0.0, 0.0
					for k := range 64 {
						want += a[i][k] * b[j][k]
						scale += math.Abs(a[i][k] * b[j][k])
					}
					v := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[(i*64+j)*4:])))
					if math.Abs(v-want) > 4*0x1p-23*scale {
						if bad++; bad < 4 {
							t.Errorf("element (%d, %d): want %g, got %g", i, j, want, v)
						}
					}
				}
			}
			if bad > 0 {
				t.Errorf("%d of 4096 elements are wrong", bad)
			}
		})
	}
}

type wgmmaRun struct {
	t   *testing.T
	dev device.Device
}

func (x *wgmmaRun) alloc(data []byte) device.Ptr {
	x.t.Helper()
	p, err := x.dev.Alloc(int64(len(data)))
	if err != nil {
		x.t.Fatal(err)
	}
	if err := x.dev.Write(p, data); err != nil {
		x.t.Fatal(err)
	}
	return p
}

// matrix makes a random 64 x 64 bf16 matrix [row][k], stored with k fastest, or with rows fastest when transposed.
func (x *wgmmaRun) matrix(r *rand.Rand, transposed bool) ([64][64]float64, device.Ptr) {
	var m [64][64]float64
	data := make([]byte, 64*64*2)
	for i := range 64 {
		for k := range 64 {
			b := num.ToBF16(r.NormFloat64(), num.RN)
			m[i][k] = float64(num.BF16(b))
			at := i*64 + k
			if transposed {
				at = k*64 + i
			}
			binary.LittleEndian.PutUint16(data[2*at:], b)
		}
	}
	return m, x.alloc(data)
}

// tensor is a map of a 64 x 64 matrix with boxes of one swizzle span by 64 rows.
func (x *wgmmaRun) tensor(p device.Ptr, s device.Swizzle) device.TensorMap {
	x.t.Helper()
	m, err := x.dev.(device.TensorMapper).NewTensorMap(device.TensorSpec{Base: p, ElementBytes: 2, Dims: []uint64{64, 64}, Strides: []uint64{128},
		Box: []uint32{8 << s, 64}, Swizzle: s})
	if err != nil {
		x.t.Fatal(err)
	}
	return m
}

func (x *wgmmaRun) run(text []byte, kernel string, args unsafe.Pointer, size uintptr) {
	x.t.Helper()
	m, err := x.dev.Load(text)
	if err != nil {
		x.t.Fatal(err)
	}
	f, err := m.Function(kernel)
	if err != nil {
		x.t.Fatal(err)
	}
	s, err := x.dev.NewStream()
	if err != nil {
		x.t.Fatal(err)
	}
	l := grid(1, 128, 1)
	if err := f.Launch(s, &l, args, size); err != nil {
		x.t.Fatal(err)
	}
}
