package main

import (
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	tests := []struct {
		name, reason, in string
		want             []string
	}{
		{"counts", "passes and skips, a skip with its reason", `
{"Action":"output","Package":"p","Test":"A","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"B","Output":"    b_test.go:3: no GPU\n"}
{"Action":"skip","Package":"p","Test":"B"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`, []string{"ok\tp\t0.500s\n", "skipped 1: no GPU\n1 passed, 0 failed, 1 skipped\n"}},
		{"failure", "a failed test's output is shown once, and its package is no second failure", `
{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:9: wrong\n"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p","Elapsed":1}
`, []string{"    a_test.go:9: wrong\nFAIL\tp\t1.000s\n0 passed, 1 failed, 0 skipped\n"}},
		{"build failure", "a package that does not build is a failure, with the compiler's words", `
{"ImportPath":"p","Action":"build-output","Output":"x.go:1: syntax error\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p"}
`, []string{"x.go:1: syntax error\nFAIL\tp [build failed]\n0 passed, 1 failed, 0 skipped\n"}},
		{"crash", "a test that ran when the process died has no end event", `
{"Action":"output","Package":"p","Test":"A","Output":"SIGSEGV\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\n"}
{"Action":"fail","Package":"p"}
`, []string{"SIGSEGV\nFAIL\tp\n0 passed, 1 failed, 0 skipped\n"}},
		{"talk", "lines that are no JSON are go's own", "go: downloading x\n", []string{"go: downloading x\n", "0 passed, 0 failed, 0 skipped\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			tally := newTally(&out)
			if err := tally.read(strings.NewReader(strings.TrimPrefix(tt.in, "\n"))); err != nil {
				t.Fatal(err)
			}
			tally.summary()
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in (%s)\n%s", want, tt.reason, out.String())
				}
			}
		})
	}
}
