package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
)

// kiviShapes differ in every compile-time constant of the kernels of KIVI caches.
var kiviShapes = []struct {
	name, reason     string
	dim, page, group int
	dtype, rule      string
	softcap          float64
	all              bool // cases
}{
	{"llama", "the speed bar's shape", 128, 16, 4, "kivi4", "share_average", 0, true},
	{"two bits", "two groups a word", 128, 16, 4, "kivi2", "share_average", 0, true},
	{"d64 g5 p32", "two tiles a page, a vector of two words", 64, 32, 5, "kivi4", "share_average", 0, false},
	{"d80 g1 p4", "a quarter of a tile, a group of 16 channels", 80, 4, 1, "kivi4", "share_average", 0, false},
	{"d80 g2 p16 two bits", "a word of one and a half groups", 80, 16, 2, "kivi2", "share_average", 0, false},
	{"d96 g7 p8 capped", "half a tile, a softcap", 96, 8, 7, "kivi4", "share_average", 30, false},
	{"d112 g12 two bits", "two n tiles, the second half empty", 112, 16, 12, "kivi2", "share_average", 0, false},
	{"d192 g16", "head tiles of one n tile", 192, 16, 16, "kivi4", "share_average", 0, false},
	{"d256 g3 p128", "the widest head, the longest page", 256, 128, 3, "kivi4", "share_average", 0, false},
	{"d256 g3 p64 two bits", "eight groups in four words", 256, 64, 3, "kivi2", "share_average", 0, false},
	{"per_head", "a list a query head", 64, 16, 6, "kivi4", "per_head", 0, false},
}

// TestKiviAttendOnSimulator runs the defaults of both forms of page_attend over quantised caches, dense and over page lists.
func TestKiviAttendOnSimulator(t *testing.T) {
	corners := []string{"no pages", "mixed lengths", "holes", "head lengths", "wide logits", "around the splits", "fewer live requests"}
	for _, tc := range kiviShapes {
		t.Run(tc.name, func(t *testing.T) {
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
			cases := corners
			if tc.all {
				cases = nil
			}
			onSimulator(t, s, tc.reason, onePerForm(t, plan.PageAttend, s), cases)
		})
	}
}

// TestKVQuantizeOnSimulator quantises pages of every shape, once with the keys written back.
func TestKVQuantizeOnSimulator(t *testing.T) {
	corners := []string{"no pages", "mixed lengths", "holes", "extreme keys", "degenerate pages", "pages filled while decoding", notFinite}
	for i, tc := range kiviShapes {
		t.Run(tc.name, func(t *testing.T) {
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
			s.Locks.Summaries = []string{"post", "pre"}[i%2]
			cases := corners
			if tc.all {
				cases = nil
			}
			onSimulator(t, s, tc.reason, onePerForm(t, plan.KVQuantize, s), cases)
		})
	}
}
