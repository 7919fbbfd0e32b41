package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/specs"
)

func listSpec(queryHeads, kvHeads, context int, combine string) *specs.Spec {
	s := summarySpec(128, 16, 4, 4)
	s.Attention.QueryHeads, s.Attention.KVHeads = queryHeads, kvHeads
	s.Locks.Combine = combine
	s.Workloads = []specs.Workload{{Context: 32768, Batch: 1}, {Context: context, Batch: 1}}
	return s
}

func TestSelectDefaultHoldsTheLongestRow(t *testing.T) {
	for _, tt := range []struct {
		name     string
		q, kv    int
		context  int
		combine  string
		want     []Param
		whatWith string
	}{
		{"128K", 32, 8, 131072, "share_average", []Param{{"threads", 512}, {"cluster", 8}, {"pages", 2}}, "two pages a thread are enough"},
		{"512K", 32, 8, 524288, "share_average", []Param{{"threads", 512}, {"cluster", 8}, {"pages", 8}}, "eight pages of 512 threads, four at once"},
		{"512K of 4 heads", 32, 4, 524288, "share_average", []Param{{"threads", 512}, {"cluster", 16}, {"pages", 4}}, "four pages of eight heads a thread, at once"},
		{"256K", 32, 8, 262144, "share_average", []Param{{"threads", 512}, {"cluster", 8}, {"pages", 4}}, "four pages at once"},
		{"512K of 2 heads", 32, 2, 524288, "share_average", []Param{{"threads", 512}, {"cluster", 16}, {"pages", 2}, {"slices", 4}}, "sixteen heads a page: shares are made ahead"},
		{"512K of 8 wide heads", 128, 8, 524288, "share_average", []Param{{"threads", 512}, {"cluster", 8}, {"pages", 2}, {"slices", 2}}, "eight clusters of 16 do not fit"},
		{"1M of 2 heads", 32, 2, 1 << 20, "share_average", []Param{{"threads", 512}, {"cluster", 16}, {"pages", 2}, {"slices", 4}}, "65536 pages"},
		{"256K of 2 heads", 32, 2, 262144, "share_average", []Param{{"threads", 512}, {"cluster", 8}, {"pages", 4}}, "four pages of sixteen heads a thread"},
		{"per_head", 32, 8, 131072, "per_head", []Param{{"threads", 512}, {"cluster", 8}}, "the radix kernel's rule"},
		{"group 24", 48, 2, 131072, "share_average", []Param{{"threads", 512}, {"cluster", 8}}, "too many heads for registers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := planPageSelect(listSpec(tt.q, tt.kv, tt.context, tt.combine), Targets["sm_90a"])
			if diff := cmp.Diff(tt.want, p.Candidates[0].Params); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.whatWith, diff)
			}
		})
	}
}

func TestSelectOfManyListsTakesSmallClusters(t *testing.T) {
	for _, tt := range []struct {
		reason  string
		batch   int
		cluster int
	}{
		{"32 lists: clusters of 8, as of one request", 4, 8},
		{"64 lists: two blocks each are all that run at once", 8, 2},
	} {
		s := listSpec(32, 8, 131072, "share_average")
		s.Workloads = []specs.Workload{{Context: 131072, Batch: tt.batch}}
		if c := planPageSelect(s, Targets["sm_90a"]).Candidates[0]; c.Param("cluster") != tt.cluster {
			t.Errorf("%s: the default is %s", tt.reason, c.ID())
		}
	}
}
