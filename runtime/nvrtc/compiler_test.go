package nvrtc_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// axpy is a small source with one header of ours and the toolkit's 16-bit floats.
func axpy(arch string) render.Source {
	return render.Source{
		Name: "axpy.cu", Entry: "axpy", Arch: arch,
		Text: `#include "kvloom/axpy.cuh"
extern "C" __global__ void __launch_bounds__(128, 1) axpy(const __grid_constant__ kvloom::AxpyArgs args) {
  __shared__ float smem[128];
  int i = blockIdx.x * 128 + threadIdx.x;
  smem[threadIdx.x ^ 1] = __bfloat162float(args.x[i]);
  __syncthreads();
  args.y[i] = smem[threadIdx.x] * args.a;
}
`,
		Headers: map[string]string{"kvloom/axpy.cuh": `#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
namespace kvloom { struct AxpyArgs { const __nv_bfloat16* x; float* y; float a; }; }
`},
	}
}

func TestCompile(t *testing.T) {
	c := nvrtctest.Compiler(t)
	plain, err := nvrtc.New(c.Toolchain(), nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, arch, cubinArch, target string
		cubin                         bool
		reason                        string
	}{
		{"hopper", "sm_90a", "", ".target sm_90a", true, "one compilation gives PTX and cubin"},
		{"real", "sm_80", "", ".target sm_80", true, "a real arch without features"},
		{"virtual", "compute_80", "", ".target sm_80", false, "portable PTX needs no cubin"},
		{"virtual with resources", "compute_80", "sm_80", ".target sm_80", true, "ptxas runs only for a real arch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := plain.Compile(t.Context(), axpy(tt.arch), nvrtc.Options{CubinArch: tt.cubinArch})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{tt.target, ".entry axpy", ".loc"} {
				if !strings.Contains(string(m.PTX), want) {
					t.Errorf("PTX without %q (%s):\n%s", want, tt.reason, m.PTX)
				}
			}
			if bytes.IndexByte(m.PTX, 0) >= 0 {
				t.Error("PTX holds a NUL; its reader takes text")
			}
			if got := len(m.Cubin) > 0; got != tt.cubin {
				t.Errorf("cubin present: %v, want %v: %s", got, tt.cubin, tt.reason)
			}
			if m.Resources.Known != tt.cubin {
				t.Errorf("resources known: %v, want %v\n%s", m.Resources.Known, tt.cubin, m.Log)
			}
			if r := m.Resources; r.Known && (r.Registers < 4 || r.Registers > 64 || r.StaticShared < 512 || r.StackBytes != 0) {
				t.Errorf("resources %+v: want some registers, the 512 B array and no stack\n%s", r, m.Log)
			}
		})
	}
}

func TestParallel(t *testing.T) {
	c := nvrtctest.Compiler(t)
	plain, err := nvrtc.New(c.Toolchain(), nil)
	if err != nil {
		t.Fatal(err)
	}
	compile := func(n, workers int) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := w; i < n; i += workers {
					s := axpy("sm_90a")
					s.Text += fmt.Sprintf("// %d\n", i)
					if m, err := plain.Compile(context.Background(), s, nvrtc.Options{}); err != nil || !m.Resources.Known {
						t.Errorf("source %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	one := compile(4, 1)
	many := compile(4, 4)
	t.Logf("4 compilations: %v on one goroutine, %v on four, %d processors", one, many, runtime.GOMAXPROCS(0))
}
