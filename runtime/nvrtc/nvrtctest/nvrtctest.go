// Package nvrtctest compiles sources in tests.
package nvrtctest

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

var open = sync.OnceValues(nvrtc.Open)

// Compiler returns the process's compiler, with the user's disk cache. Without NVRTC the test is skipped with what was tried, or
// fails when KVLOOM_REQUIRE_NVRTC=1, so that CI cannot pass by skipping.
func Compiler(t testing.TB) *nvrtc.Compiler {
	t.Helper()
	c, err := open()
	if err != nil {
		if os.Getenv("KVLOOM_REQUIRE_NVRTC") == "1" {
			t.Fatalf("KVLOOM_REQUIRE_NVRTC=1: %v", err)
		}
		t.Skipf("no NVRTC: %v", err)
	}
	return c
}

// Compile makes a module of src and logs its resources. A refusal fails the test with the compiler's log. For a virtual
// architecture a cubin of the matching real one is made too, so that registers and spills are known.
func Compile(t testing.TB, src render.Source) *nvrtc.Module {
	t.Helper()
	var o nvrtc.Options
	if n, virtual := strings.CutPrefix(src.Arch, "compute_"); virtual {
		o.CubinArch = "sm_" + n
	}
	m, err := Compiler(t).Compile(t.Context(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range m.Warnings {
		t.Log(w)
	}
	t.Logf("%s %s: %s", src.Name, src.Arch, m.Resources)
	return m
}
