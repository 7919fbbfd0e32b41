package conform

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// TestVariantsRun executes every variant: the simulator knows them all, and names are unique.
func TestVariantsRun(t *testing.T) {
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	seen := map[string]bool{}
	for _, v := range Variants() {
		if seen[v.Name] {
			t.Errorf("two variants are called %s", v.Name)
		}
		seen[v.Name] = true
		if _, err := v.Run(d); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d variants", len(seen))
}

// TestVariantsAssemble has ptxas, inside NVRTC, assemble every variant for sm_90a: what is compared exists.
func TestVariantsAssemble(t *testing.T) {
	var b strings.Builder
	all := Variants()
	for i, v := range all {
		text := v.Text()
		body := text[strings.Index(text, "{")+1 : strings.LastIndex(text, "ret;")]
		body = strings.NewReplacer("ld.param.u64 %io1, [in]", "mov.u64 %io1, 0", "ld.param.u64 %io2, [out]", "mov.u64 %io2, 0").Replace(body)
		body = strings.NewReplacer("\n", "\\n", `"`, `\"`, "DONE", fmt.Sprint("DONE", i)).Replace(body)
		fmt.Fprintf(&b, "extern \"C\" __global__ void v%d() { asm volatile(\"{%s}\"); }\n", i, body)
	}
	src := render.Source{Name: "variants.cu", Text: b.String(), Entry: "v0", Arch: "sm_90a", Hash: fmt.Sprint(len(all), b.Len())}
	if _, err := nvrtctest.Compiler(t).Compile(t.Context(), src, nvrtc.Options{}); err != nil {
		t.Fatal(err)
	}
}
