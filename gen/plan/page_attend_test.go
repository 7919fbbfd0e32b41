package plan

import (
	"slices"
	"testing"
)

// TestAttendDefaults asserts what lists and dense attention start from without a tuned table.
func TestAttendDefaults(t *testing.T) {
	for _, tt := range []struct {
		name           string
		q, kv          int
		cluster, heads int // of the default for lists; head tiles of a list
		splits         int // of the default for dense attention
		why            string
	}{
		{"8 heads", 32, 8, 8, 1, 16, "eight clusters of 16 do not fit at once"},
		{"2 heads, group 16", 32, 2, 16, 2, 66, "two clusters a list, 64 SMs; dense attention on every SM"},
		{"4 heads, group 8", 32, 4, 16, 1, 33, "four clusters of 16"},
		{"4 heads, group 16", 64, 4, 8, 2, 33, "eight clusters of 8 on 64 SMs"},
		{"8 heads, group 16", 128, 8, 8, 1, 16, "sixteen clusters of 8 do not fit at once: two n tiles a warp"},
		{"32 heads", 32, 32, 8, 1, 4, "many lists"},
		{"3 heads, group 3", 9, 3, 16, 1, 44, "few lists of a small model"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fp := planPageAttend(listSpec(tt.q, tt.kv, 131072, "share_average"), Targets["sm_90a"])
			c := fp.Candidates[fp.DefaultFor("page_attend")]
			if c.Kernel == attendStream || c.Geometry.Cluster != tt.cluster || c.Geometry.Grid[0].Times != int64(tt.cluster) || c.Geometry.Grid[1].Times != int64(tt.heads) {
				t.Errorf("%s: %s, clusters of %d, grid %v; want clusters of %d, %d head tiles", tt.why, c.ID(), c.Geometry.Cluster, c.Geometry.Grid, tt.cluster, tt.heads)
			}
			d := fp.Candidates[fp.DefaultFor("dense")]
			if d.Kernel != attendBulk || d.Form != Hopper || d.Param("splits") != tt.splits || d.Geometry.Grid[0].Times != int64(tt.splits) {
				t.Errorf("%s: dense by %s, grid %v; want the streaming kernel by bulk copies over %d splits", tt.why, d.ID(), d.Geometry.Grid, tt.splits)
			}
		})
	}
}

// TestAttendTogether asserts which lists weigh a warp's first tiles together: those of quantised pages, others as a choice of the tuner's, and
// never more tiles than two.
func TestAttendTogether(t *testing.T) {
	for _, tt := range []struct {
		name  string
		dtype string
		q, kv int
		want  func(Candidate) bool
	}{
		{"bf16", "bf16", 32, 8, func(c Candidate) bool {
			return c.Param("stages") <= 2 && slices.Contains(c.Params, Param{"together", 1})
		}},
		{"kivi4", "kivi4", 32, 8, func(c Candidate) bool { return c.Param("stages") <= 2 }},
	} {
		s := listSpec(tt.q, tt.kv, 131072, "share_average")
		s.Cache.DType = tt.dtype
		choices, ids := 0, map[string]bool{}
		for _, c := range planPageAttend(s, Targets["sm_90a"]).Candidates {
			if !slices.Contains(c.Params, Param{"list", 1}) {
				continue
			}
			i := slices.IndexFunc(c.Constants, func(k Constant) bool { return k.Name == "kTogether" })
			if got := c.Constants[i].Value == "true"; got != tt.want(c) {
				t.Errorf("%s: %s: together is %t", tt.name, c.ID(), got)
			}
			if slices.Contains(c.Params, Param{"together", 1}) {
				choices++
			}
			if ids[c.ID()] {
				t.Errorf("%s: %s twice", tt.name, c.ID())
			}
			ids[c.ID()] = true
		}
		if (choices > 0) != (tt.dtype == "bf16") {
			t.Errorf("%s: %d candidates leave it to the tuner", tt.name, choices)
		}
	}
}
