package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// TestEvict runs the program on the sample: every rule keeps what float64 keeps, and attention over the compacted cache is float64's
// over the kept tokens, up to the rounding of its bf16 output.
func TestEvict(t *testing.T) {
	nvrtctest.Compiler(t)
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"--device", "sim", "--ratios", "0.1", "--json"}, &stdout, &stderr); err != nil {
		t.Fatal(err)
	}
	var rows []row
	if err := json.Unmarshal(stdout.Bytes(), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(contenders) {
		t.Fatalf("%d rows of %d contenders", len(rows), len(contenders))
	}
	for _, r := range rows {
		var kept int32
		for _, n := range r.Kept {
			kept += n
		}
		if r.SameAsFloat64 < 0.995 || r.KernelError > 1e-2 || kept != 3*102 {
			t.Errorf("%s: %d tokens kept, %.4f of them as float64 does, kernel error %g", r.Rule, kept, r.SameAsFloat64, r.KernelError)
		}
		if !(r.Mass > 0.1 && r.Mass < 1) || !(r.OutputError > r.KernelError) {
			t.Errorf("%s: mass %g, error %g: no eviction looks like that", r.Rule, r.Mass, r.OutputError)
		}
	}
}

func TestBadArguments(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--ratios", "0"}, "--ratios 0"},
		{[]string{"--ratios", "1.5"}, "--ratios 1.5"},
		{[]string{"--window", "16"}, "a window of 16 of 16 queries leaves 0"},
		{[]string{"--window", "0"}, "a window of 0"},
		{[]string{"--data", "none.safetensors"}, "none.safetensors"},
	} {
		var stdout, stderr bytes.Buffer
		if err := run(t.Context(), tc.args, &stdout, &stderr); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: error %v, want one with %q", tc.args, err, tc.want)
		}
	}
}

// TestUsage: help is no error, and what the program would ignore is one.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--help"}, ""},
		{[]string{"prompt.safetensors"}, `unexpected argument "prompt.safetensors"; a file is given with --data`},
		{[]string{"--ratios", "2"}, "--ratios 2: want numbers above 0 and up to 1"},
		{[]string{"--data", "none.safetensors"}, "none.safetensors"},
	} {
		var stdout, stderr bytes.Buffer
		err := run(t.Context(), c.args, &stdout, &stderr)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("evict %v: %v, want %q", c.args, err, c.want)
		}
	}
}
