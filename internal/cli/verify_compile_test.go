package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// The second time everything comes out of the cache, and nothing is launched either time.
func TestVerifyCompile(t *testing.T) {
	nvrtctest.Compiler(t)
	for range 2 {
		var out, progress bytes.Buffer
		v := VerifyCmd{Specs: []string{"smollm2-135m"}, Family: []string{"page_select"}, Candidates: "default", Compile: true}
		if err := v.Run(&Context{Context: t.Context(), Stdout: &out, Stderr: &progress}); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), "1 kernels compiled, 0 refused, ") || !strings.Contains(progress.String(), "[1/1]") {
			t.Errorf("%q, %q", out.String(), progress.String())
		}
	}
	var out, progress bytes.Buffer
	v := VerifyCmd{Specs: []string{"smollm2-135m"}, Family: []string{"page_select"}, Candidates: "default", Compile: true}
	if err := v.Run(&Context{Context: t.Context(), Stdout: &out, Stderr: &progress, JSON: true}); err != nil {
		t.Fatal(err)
	}
	var got compileReport
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Kernels != 1 || got.Refused != 0 {
		t.Errorf("%s: %v", out.String(), err)
	}
}
