package plan

import "testing"

// TestPageScoreImma: which specs get the integer form as their default, and that every group of warps has stages of its own.
func TestPageScoreImma(t *testing.T) {
	for _, tc := range []struct {
		name, reason                 string
		dim, page, rank, bits, group int
		kvHeads                      int
		softcap                      float64
		want                         bool
	}{
		{"llama-3.1-8b", "the first speed bar", 128, 16, 4, 4, 4, 8, 0, true},
		{"llama-3.1-8b r8", "the other rank", 128, 16, 8, 4, 4, 8, 0, true},
		{"glm-4-9b-chat", "four groups of warps", 128, 16, 4, 4, 16, 2, 0, true},
		{"smollm2", "three kv heads: two groups of three warps", 64, 16, 4, 4, 3, 3, 0, true},
		{"seven kv heads", "a group of seven warps", 64, 16, 8, 4, 5, 7, 0, true},
		{"prime kv heads", "one kv head a copy, eight groups of one warp", 128, 16, 4, 4, 1, 11, 0, true},
		{"d256, group 16", "a warp cannot hold so much query", 256, 16, 8, 4, 16, 1, 0, false},
		{"page 32", "tiles are laid out for 16 tokens", 128, 32, 4, 4, 4, 8, 0, false},
		{"rank 16", "no k step of whole pages", 128, 32, 16, 4, 4, 8, 0, false},
		{"rank 2", "not built", 128, 16, 2, 4, 4, 8, 0, false},
		{"8 bits", "nibbles alone", 128, 16, 4, 8, 4, 8, 0, false},
		{"d96", "quarters of 24 dims are one and a half k steps", 96, 16, 4, 4, 4, 8, 0, false},
		{"group 24", "more than two sets of eight heads", 128, 16, 4, 4, 24, 2, 0, false},
		{"capped", "a cap bends each logit", 128, 16, 4, 4, 4, 8, 30, false},
	} {
		s := scoreSpec(tc.dim, tc.page, tc.rank, tc.bits, tc.group)
		s.Attention.KVHeads, s.Attention.QueryHeads, s.Attention.LogitSoftcap = tc.kvHeads, tc.kvHeads*tc.group, tc.softcap
		fp := planPageScore(s, Targets["sm_90a"])
		if got := fp.Candidates[0].Kernel == "kvloom::page_score_imma"; got != tc.want {
			t.Errorf("%s (%s): the default is %s", tc.name, tc.reason, fp.Candidates[0].ID())
		}
		for _, c := range fp.Candidates {
			if c.Kernel != "kvloom::page_score_imma" {
				continue
			}
			groups := c.Param("warps") / c.Param("heads")
			if c.Param("warps")%c.Param("heads") != 0 || c.Param("stages")%groups != 0 || c.Param("stages") < 2 {
				t.Errorf("%s: %s: %d groups of warps", tc.name, c.ID(), groups)
			}
		}
	}
	if c, r := planPageScoreImma(scoreSpec(128, 16, 4, 4, 4), Targets["sm_90"]); len(c)+len(r) != 0 {
		t.Errorf("sm_90 has %d candidates", len(c)+len(r))
	}
}
