package kernel

import (
	"strings"
	"testing"
)

// TestQueryChecks names the first argument that a kernel would trip over; page_summary of a weighted basis reads weights.
func TestQueryChecks(t *testing.T) {
	s := &Set{bundle: &Bundle{Model: Model{QueryHeads: 32, KVHeads: 8, HeadDim: 128, PageSize: 16, DType: "bf16", Rank: 4, BasisBits: 4, Basis: queryWeighted,
		RecordBytes: 496, Combine: "share_average", Slots: 128}}}
	moment := func(change func(*QueryMomentArgs)) error {
		a := QueryMomentArgs{Q: 4096, QLens: 4096, Moments: 4096, QBatchStride: 32 * 128 * 9, QTokenStride: 32 * 128, QHeadStride: 128, Batch: 2, KVHeads: 8, Group: 4, Splits: 16}
		change(&a)
		return s.CheckQueryMoment(&a)
	}
	factor := func(change func(*QueryFactorArgs)) error {
		a := QueryFactorArgs{Moments: 4096, Weights: 4096, Splits: 16, KVHeads: 8}
		change(&a)
		return s.CheckQueryFactor(&a)
	}
	summary := summaryArgs()
	for _, tc := range []struct {
		err  error
		want string // "": legal
	}{
		{moment(func(*QueryMomentArgs) {}), ""},
		{moment(func(a *QueryMomentArgs) { a.Q = 0 }), "q is null"},
		{moment(func(a *QueryMomentArgs) { a.Moments = 4 }), "moments is 0x4"},
		{moment(func(a *QueryMomentArgs) { a.Group = 8 }), "group is 8, the model's is 4"},
		{moment(func(a *QueryMomentArgs) { a.Splits = 0 }), "splits is 0"},
		{moment(func(a *QueryMomentArgs) { a.QHeadStride = 100 }), "q_head_stride is 100"},
		{s.CheckQueryMoment(nil), "are nil"},
		{factor(func(*QueryFactorArgs) {}), ""},
		{factor(func(a *QueryFactorArgs) { a.Weights = 0 }), "weights is null"},
		{factor(func(a *QueryFactorArgs) { a.KVHeads = -1 }), "kv_heads is -1"},
		{s.CheckQueryFactor(nil), "are nil"},
		{s.CheckPageSummary(&summary), "weights is null"},
	} {
		switch {
		case tc.want == "" && tc.err != nil:
			t.Errorf("legal arguments: %v", tc.err)
		case tc.want != "" && (tc.err == nil || !strings.Contains(tc.err.Error(), tc.want)):
			t.Errorf("error %v, want %q", tc.err, tc.want)
		}
	}
}
