package plan

import "github.com/kvloom/kvloom/specs"

// LeavesMasses reports whether the first form of page_score leaves masses for page_select beside the scores of a single request.
func LeavesMasses(s *specs.Spec) bool {
	return s.Record().Scorer == "" && (immaRefusal(s) == "" || pagesRefusal(s) == "") && immaHeads(s) == s.Attention.KVHeads
}
