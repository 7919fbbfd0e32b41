package specs

import "fmt"

// The scorers, as specs spell them.
const (
	PageLocal = "page_local"
	Quest     = "quest"
	MeanKey   = "mean_key"
	ExactLSE  = "exact_lse"
)

// Record is the layout of the spec's page summaries. What the scorers other than page_local keep of a page and KV head:
//
//	quest      minima and maxima of the dims, [2][head_dim] of the cache's type: NaN all over where a key is not finite
//	mean_key   the mean key: head_dim int8 codes, their bf16 scale (NaN where a key is not finite), zeros
//	exact_lse  nothing; 16 bytes of zeros stand for it, so that every scorer has a record
func (s *Spec) Record() Record {
	d, page := s.Attention.HeadDim, s.Cache.PageSize
	if s.Locks.Scorer != PageLocal && s.Locks.Scorer != "" {
		return NewScorerRecord(s.Locks.Scorer, d, page)
	}
	return NewRecord(d, page, s.Locks.Rank, s.Locks.BasisBits)
}

// NewScorerRecord is the record of a scorer other than page_local.
func NewScorerRecord(scorer string, headDim, pageSize int) Record {
	r := Record{Scorer: scorer, HeadDim: headDim, PageSize: pageSize}
	switch scorer {
	case Quest:
		r.Bytes = 4 * headDim
	case MeanKey:
		r.MuScale, r.Bytes = headDim, headDim+16
	case ExactLSE:
		r.Bytes = 16
	default:
		panic(fmt.Sprintf("BUG: specs: no record of scorer %q", scorer))
	}
	return r
}

// scorerPayload is what a record of another scorer holds without padding.
func (r Record) scorerPayload() int {
	switch r.Scorer {
	case Quest:
		return 4 * r.HeadDim
	case MeanKey:
		return r.HeadDim + 2
	}
	return 0
}

// faultScorer reports fields of page_local's summaries beside another scorer.
func faultScorer(s *Spec, d *decoder) string {
	if s.Record().Scorer == "" {
		return ""
	}
	for _, field := range []string{"rank", "basis_bits", "coefficient_bits", "centroid_bits", "scale_group", "basis"} {
		if d.written("locks." + field) {
			return fmt.Sprintf("locks.%s belongs to scorer page_local, not %s; remove it", field, s.Locks.Scorer)
		}
	}
	return ""
}
