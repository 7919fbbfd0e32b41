package bind

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
)

func TestPackageName(t *testing.T) {
	for _, tc := range []struct{ model, want string }{
		{"llama-3.1-8b", "llama318b"}, {"Qwen2.5-7B-1M", "qwen257b1m"}, {"4chan", "m4chan"}, {"---", "m"}, {"größe-1", "gre1"},
	} {
		if got := PackageName(tc.model); got != tc.want {
			t.Errorf("%s is package %s, want %s", tc.model, got, tc.want)
		}
	}
}

func TestFileName(t *testing.T) {
	c := plan.Candidate{Family: plan.PageScore, Form: plan.Hopper, Arch: "sm_90a", Params: []plan.Param{{Name: "warps", Value: 8}, {Name: "stages", Value: 2}}}
	if got := FileName(c); got != "page_score_hopper_warps8_stages2.cu" {
		t.Error(got)
	}
	c.Arch = "sm_100a"
	if got := FileName(c); got != "page_score_hopper_warps8_stages2_sm_100a.cu" {
		t.Error(got)
	}
}
