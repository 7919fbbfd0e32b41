package verify

import (
	"io/fs"
	"math"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/templates"
)

// e4m3Source converts every code beside its neighbour 91 places on: f16 pairs, then bf16 pairs.
const e4m3Source = `#include "kvloom/quant/e4m3.cuh"
extern "C" __global__ void every_code(uint32_t* out) {
  const uint32_t code = threadIdx.x, pair = code | (code + 91 & 0xff) << 8;
  out[code] = kvloom::e4m3x2_to_f16x2(pair);
  out[256 + code] = kvloom::e4m3x2_to_bf16x2(pair);
}
`

// TestE4M3Conversions compares every code with its value, by the conversion instruction and, below compute capability 8.9, by a shift and a
// product: f16 and bf16 hold them exactly, NaN stays NaN, zero keeps its sign.
func TestE4M3Conversions(t *testing.T) {
	headers := map[string]string{}
	for _, name := range []string{"kvloom/quant/e4m3.cuh", "kvloom/types.cuh"} {
		text, err := fs.ReadFile(templates.FS, "include/"+name)
		if err != nil {
			t.Fatal(err)
		}
		headers[name] = string(text)
	}
	for _, arch := range []string{"sm_90a", "compute_80"} {
		t.Run(arch, func(t *testing.T) {
			m := nvrtctest.Compile(t, render.Source{Name: "e4m3.cu", Text: e4m3Source, Headers: headers, Entry: "every_code", Arch: arch,
				Hash: arch + headers["kvloom/quant/e4m3.cuh"] + e4m3Source})
			words := runE4M3(t, m.PTX)
			for code := range 256 {
				for half, c := range []int{code, (code + 91) & 0xff} {
					want := reference.FP8.Value(uint16(c))
					for i, dtype := range []reference.DType{reference.FP16, reference.BF16} {
						got := dtype.Value(words[2*(256*i+code)+half])
						if got != want && !(math.IsNaN(got) && math.IsNaN(want)) || math.Signbit(got) != math.Signbit(want) && !math.IsNaN(want) {
							t.Fatalf("code %#02x as %s: got %g, want %g", c, dtype, got, want)
						}
					}
				}
			}
		})
	}
}

func runE4M3(t *testing.T, ptx []byte) []uint16 {
	t.Helper()
	dev, err := sim.New(sim.Config{Sanitize: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := dev.Alloc(2048)
	must(err)
	module, err := dev.Load(ptx)
	must(err)
	f, err := module.Function("every_code")
	must(err)
	stream, err := dev.NewStream()
	must(err)
	l := device.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{256, 1, 1}, Cluster: [3]uint32{1, 1, 1}}
	must(f.Launch(stream, &l, unsafe.Pointer(&out), unsafe.Sizeof(out)))
	must(stream.Synchronize())
	data := make([]byte, 2048)
	must(dev.Read(data, out))
	return Uint16s(data)
}
