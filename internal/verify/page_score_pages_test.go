package verify

import (
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
)

// pagesCandidates are the candidates of page_score_pages.
func pagesCandidates(fp plan.FamilyPlan) (list []plan.Candidate) {
	for _, c := range fp.Candidates {
		if c.Kernel == "kvloom::page_score_pages" {
			list = append(list, c)
		}
	}
	return list
}

// TestPageScorePagesOnSimulator runs the form with pages as rows where blocks have many tiles.
func TestPageScorePagesOnSimulator(t *testing.T) {
	for _, tc := range []struct {
		name, reason          string
		dim, page, rank, bits int
		group, kvs            int
		dtype                 string
		sms                   int
		schedule              string
		cases                 string
	}{
		{"group 8", "a lane has two heads of its page", 128, 16, 1, 4, 8, 4, "bf16", 2, "", "crosses 1024 tokens,mixed lengths,holes,wide logits,70 requests," + nanRecord},
		{"group 4", "two lanes share a page's tokens", 128, 16, 1, 4, 4, 8, "bf16", 2, "random:1", "crosses 1024 tokens,wide logits,extreme keys,degenerate pages"},
		{"rank 2", "the centroid is alone in its product", 128, 16, 2, 4, 7, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
		{"rank 4, fp16", "three products a tile", 64, 16, 4, 4, 3, 3, "fp16", 2, "", "crosses 1024 tokens,wide logits,extreme keys"},
		{"group 16", "two n tiles of heads", 128, 16, 1, 4, 16, 2, "bf16", 1, "random:3", "crosses 1024 tokens,wide logits"},
		{"group 24", "two passes of twelve heads", 128, 16, 2, 4, 24, 1, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
		{"group 1", "four lanes share a page's tokens", 128, 16, 1, 4, 1, 11, "bf16", 2, "", "33 pages,wide logits,mixed lengths"},
		{"group 2, page 32", "a lane has a quarter of the tokens of both heads", 96, 32, 2, 4, 2, 2, "bf16", 2, "", "half-full last page,wide logits"},
		{"page 64", "tokens in turns", 128, 64, 1, 4, 4, 2, "bf16", 2, "", "half-full last page,wide logits"},
		{"head dim 80, eight bits", "quarters of 20 dims", 80, 16, 2, 8, 5, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
		{"two bits", "pairs 8 dims apart", 128, 16, 1, 2, 8, 2, "bf16", 2, "", "crosses 1024 tokens,wide logits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := immaSpec(tc.dim, tc.page, tc.rank, tc.bits, tc.group, tc.kvs, tc.dtype)
			list := pagesCandidates(plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"]))
			if len(list) == 0 {
				t.Fatal(tc.reason, ": no candidate")
			}
			checkImma(t, s, list[0], tc.sms, tc.schedule, tc.reason, strings.Split(tc.cases, ","))
		})
	}
}

// TestPageScorePagesChoices runs, for each value of each parameter, a candidate that has it.
func TestPageScorePagesChoices(t *testing.T) {
	t.Parallel()
	s := immaSpec(128, 16, 1, 4, 8, 4, "bf16")
	seen := map[plan.Param]bool{}
	for _, c := range pagesCandidates(plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"])) {
		fresh := false
		for _, p := range c.Params {
			fresh = fresh || !seen[p]
			seen[p] = true
		}
		if fresh {
			t.Run(c.ID(), func(t *testing.T) {
				checkImma(t, s, c, 2, "", "a value of a parameter", []string{"crosses 1024 tokens", "mixed lengths", "wide logits"})
			})
		}
	}
}

// TestPageScoreFormsOnSimulator scores records of other forms than the plain one by every kind of candidate that reads them: 4-bit
// coefficients and centroids, scales of 16 dims.
func TestPageScoreFormsOnSimulator(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, reason           string
		dim, rank, bits, group int
		dtype                  string
		coefficients, centroid int
		scales                 string
		softcap                float64
	}{
		{"c4", "nibbles of coefficients", 128, 4, 4, 4, "bf16", 4, 8, "column", 0},
		{"m4", "a lane has two scales of the centroid", 128, 1, 4, 8, "bf16", 8, 4, "column", 0},
		{"s16", "a lane has two scales of a column", 128, 2, 4, 7, "fp16", 8, 8, "16", 0},
		{"all, rank 1", "the smallest record", 128, 1, 4, 8, "bf16", 4, 4, "16", 0},
		{"all, rank 3", "a padded rank; a group of 16", 64, 3, 4, 16, "bf16", 4, 4, "16", 0},
		{"all, head dim 80", "groups lie across quarters", 80, 2, 4, 3, "bf16", 4, 4, "16", 0},
		{"all, two bits", "pairs 8 dims apart", 128, 4, 2, 4, "bf16", 4, 4, "16", 0},
		{"c4 m4, eight bits, head dim 112", "a 4-bit centroid in the order of bytes", 112, 2, 8, 2, "bf16", 4, 4, "column", 0},
		{"c4 m4, sixteen bits", "columns without scales", 96, 8, 16, 4, "bf16", 4, 4, "column", 30},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := immaSpec(tc.dim, 16, tc.rank, tc.bits, tc.group, 2, tc.dtype)
			s.Locks.CoefficientBits, s.Locks.CentroidBits, s.Locks.ScaleGroup = tc.coefficients, tc.centroid, tc.scales
			s.Attention.LogitSoftcap = tc.softcap
			seen := map[string]bool{}
			for _, c := range plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"]).Candidates {
				if kind := c.Kernel + string(c.Form); !seen[kind] {
					seen[kind] = true
					checkImma(t, s, c, 2, "", tc.reason, []string{"one token", "crosses 1024 tokens", "wide logits", "extreme keys", "degenerate pages", nanRecord})
				}
			}
			if len(seen) == 0 {
				t.Error("no candidate")
			}
		})
	}
}
