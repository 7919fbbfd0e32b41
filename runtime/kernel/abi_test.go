package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestABI asks a C++ compiler whether the Go structs have the sizes and offsets of abi.cuh: one wrong offset and a kernel reads a
// stride as a pointer.
func TestABI(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C++ compiler (cc)")
	}
	dir := t.TempDir()
	// The 16-bit float headers need the whole toolkit, and the structs hold pointers alone.
	for name, text := range map[string]string{"cuda_bf16.h": "struct __nv_bfloat16 {};\n", "cuda_fp16.h": "struct __half {};\n", "abi.cc": assertions()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(cc, "-x", "c++", "-std=c++17", "-fsyntax-only", "-I", dir, "-I", "../../templates/include", filepath.Join(dir, "abi.cc")).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "cc1plus") {
			t.Skipf("cc compiles no C++: %s", out)
		}
		t.Fatalf("Go and C++ disagree:\n%s", out)
	}
}

// assertions is a translation unit of static_asserts, one for each size and offset that Go has.
func assertions() string {
	var b strings.Builder
	b.WriteString("#include <cstddef>\n#include \"kvloom/abi_drop.cuh\"\n#include \"kvloom/abi_query.cuh\"\n")
	for _, s := range []struct {
		c string
		t reflect.Type
	}{
		{"KvCache", reflect.TypeFor[KVCache]()}, {"PageSummaryArgs", reflect.TypeFor[PageSummaryArgs]()}, {"PageScoreArgs", reflect.TypeFor[PageScoreArgs]()},
		{"PageSelectArgs", reflect.TypeFor[PageSelectArgs]()}, {"PageAttendArgs", reflect.TypeFor[PageAttendArgs]()}, {"PageSelectAttendArgs", reflect.TypeFor[PageSelectAttendArgs]()},
		{"KvQuantizeArgs", reflect.TypeFor[KVQuantizeArgs]()}, {"PageRerankArgs", reflect.TypeFor[PageRerankArgs]()}, {"PageRerankAttendArgs", reflect.TypeFor[PageRerankAttendArgs]()}, {"PageSelectRerankAttendArgs", reflect.TypeFor[PageSelectRerankAttendArgs]()}, {"QueryMomentArgs", reflect.TypeFor[QueryMomentArgs]()}, {"QueryFactorArgs", reflect.TypeFor[QueryFactorArgs]()},
		{"DropObserveArgs", reflect.TypeFor[DropObserveArgs]()}, {"DropScoreArgs", reflect.TypeFor[DropScoreArgs]()}, {"DropObserveScoreArgs", reflect.TypeFor[DropObserveScoreArgs]()}, {"DropPoolArgs", reflect.TypeFor[DropPoolArgs]()},
		{"DropBudget", reflect.TypeFor[DropBudget]()}, {"DropAllotArgs", reflect.TypeFor[DropAllotArgs]()}, {"DropSelectArgs", reflect.TypeFor[DropSelectArgs]()},
		{"DropCompactArgs", reflect.TypeFor[DropCompactArgs]()},
	} {
		fmt.Fprintf(&b, "static_assert(sizeof(kvloom::%s) == %d, \"size of %s\");\n", s.c, s.t.Size(), s.c)
		for i := range s.t.NumField() {
			f := s.t.Field(i)
			name := snake(f.Name)
			fmt.Fprintf(&b, "static_assert(offsetof(kvloom::%s, %s) == %d, \"%s.%s\");\n", s.c, name, f.Offset, s.c, name)
			fmt.Fprintf(&b, "static_assert(sizeof(kvloom::%s::%s) == %d, \"size of %s.%s\");\n", s.c, name, f.Type.Size(), s.c, name)
		}
	}
	return b.String()
}

var (
	wordEnd = regexp.MustCompile(`([a-z])([A-Z])`)
	initial = regexp.MustCompile(`^([KVQA]|LSE)([A-Z][a-z])`)
)

// snake spells a Go field as abi.cuh does: KBlockStride is k_block_stride. The unnamed padding is "reserved" there.
func snake(name string) string {
	switch name {
	case "_":
		return "reserved"
	case "KVHeads":
		return "kv_heads"
	case "LSE":
		return "lse"
	}
	return strings.ToLower(wordEnd.ReplaceAllString(initial.ReplaceAllString(name, "${1}_$2"), "${1}_$2"))
}
