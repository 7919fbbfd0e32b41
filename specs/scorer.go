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
	d, page := s.Attention.HeadDim, s.SummaryTokens()
	if s.Locks.Scorer != PageLocal && s.Locks.Scorer != "" {
		return NewScorerRecord(s.Locks.Scorer, d, page)
	}
	return NewFormRecord(d, page, s.Locks.Rank, s.Locks.BasisBits, s.Locks.RecordForm())
}

// RecordForm is the form that the fields of page_local's summaries ask for.
func (l Locks) RecordForm() RecordForm {
	return RecordForm{Coefficients4: l.CoefficientBits == 4, Centroid4: l.CentroidBits == 4, Grouped: l.ScaleGroup == "16"}
}

// faultForm reports small records that no kernel builds.
func faultForm(s *Spec, _ *decoder) string {
	l := s.Locks
	form := l.RecordForm()
	switch {
	case form.Plain() || s.Record().Scorer != "":
		return ""
	case s.Cache.PageSize != 16 || l.Rank > 8:
		return fmt.Sprintf("locks.coefficient_bits 4, centroid_bits 4 and scale_group 16 are built for pages of 16 tokens and ranks up to 8, not for pages of %d at rank %d; use 8, 8 and column",
			s.Cache.PageSize, l.Rank)
	case form.Grouped && l.BasisBits > 4:
		return fmt.Sprintf("locks.scale_group 16 is built for bases of 2 and 4 bits, not %d; use column", l.BasisBits)
	case s.Cache.DType != "bf16" && s.Cache.DType != "fp16":
		return fmt.Sprintf("cache.dtype %s is not built with 4-bit coefficients, 4-bit centroids or scale_group 16; use bf16 or fp16", s.Cache.DType)
	}
	return ""
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
