package reference

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/kvloom/kvloom/specs"
)

// Form is how one page summary is stored.
type Form struct {
	Rank            int
	BasisBits       int  // 2, 4, 8, 16; 0: nothing is quantised and no stored form exists
	CoefficientBits int  // 8, 4
	CentroidBits    int  // 8: one scale; 4: the centroid less the head's mean key, a scale every GroupDims dims
	Grouped         bool // the basis has a scale every GroupDims dims of a column, else one a column
	Weighted        bool // query-weighted basis
	Pages           int  // that one summary serves
	Together        bool // they are scored and proposed to the exact rerank together, as kernels do; else one by one
}

// GroupDims is the dims that share a scale where scales are grouped; it divides every head dim.
const GroupDims = specs.ScaleDims

// PlainForm is the Locks paper's form.
func PlainForm(rank, basisBits int) Form {
	return Form{Rank: rank, BasisBits: basisBits, CoefficientBits: 8, CentroidBits: 8, Pages: 1}
}

var formPattern = regexp.MustCompile(`^r(\d+)(?:i(\d+))?(?:c(\d+))?(?:m(\d+))?(s16)?(w)?(?:([pg])(\d+))?$`)

// ParseForm reads what String writes: r2c4s16w is rank 2, a 4-bit basis with scales per 16 dims, 4-bit coefficients, query-weighted.
// i says the basis's bits, c the coefficients', m the centroid's, p the pages that one summary serves; left out they are 4, 8, 8, 1. g for p:
// those pages are proposed together.
func ParseForm(text string) (Form, error) {
	m := formPattern.FindStringSubmatch(text)
	if m == nil {
		return Form{}, fmt.Errorf("form %q is none; write rank r1 to r16, then as needed i2, i4, i8 or i16 (basis bits), c4, m4, s16, w and p2 to p4 or g2 to g4, in this order, as in r2c4s16w", text)
	}
	number := func(s string, otherwise int) int {
		if n, err := strconv.Atoi(s); err == nil {
			return n
		}
		return otherwise
	}
	f := Form{Rank: number(m[1], 0), BasisBits: number(m[2], 4), CoefficientBits: number(m[3], 8), CentroidBits: number(m[4], 8),
		Grouped: m[5] != "", Weighted: m[6] != "", Pages: number(m[8], 1), Together: m[7] == "g"}
	oneOf := func(what string, got int, allowed ...int) error {
		for _, a := range allowed {
			if got == a {
				return nil
			}
		}
		return fmt.Errorf("form %q has %s of %d; allowed: %v", text, what, got, allowed)
	}
	for _, err := range []error{oneOf("a basis", f.BasisBits, 2, 4, 8, 16), oneOf("coefficients", f.CoefficientBits, 4, 8),
		oneOf("a centroid", f.CentroidBits, 4, 8), oneOf("pages a summary", f.Pages, 1, 2, 3, 4)} {
		if err != nil {
			return Form{}, err
		}
	}
	if f.Rank < 1 || f.Rank > 16 {
		return Form{}, fmt.Errorf("form %q has rank %d; allowed: 1 to 16", text, f.Rank)
	}
	return f, nil
}

// String is the form as ParseForm reads it, what has its default value left out.
func (f Form) String() string {
	text := fmt.Sprintf("r%d", f.Rank)
	if f.BasisBits != 4 {
		text += fmt.Sprintf("i%d", f.BasisBits)
	}
	if f.CoefficientBits != 8 {
		text += fmt.Sprintf("c%d", f.CoefficientBits)
	}
	if f.CentroidBits != 8 {
		text += fmt.Sprintf("m%d", f.CentroidBits)
	}
	if f.Grouped {
		text += "s16"
	}
	if f.Weighted {
		text += "w"
	}
	if f.Pages != 1 {
		text += fmt.Sprintf("%s%d", map[bool]string{false: "p", true: "g"}[f.Together], f.Pages)
	}
	return text
}

// Record is the form of the record of one page.
func (f Form) Record() specs.RecordForm {
	return specs.RecordForm{Coefficients4: f.CoefficientBits == 4, Centroid4: f.CentroidBits == 4, Grouped: f.Grouped}
}

// Bytes is the payload of one page: specs.Record's figure for the plain form. Token scales are bf16.
func (f Form) Bytes(dim, page int) float64 {
	if f.BasisBits == 0 {
		return 0
	}
	tokens, groups := page*f.Pages, dim/GroupDims
	bits := dim*f.Rank*f.BasisBits + tokens*f.Rank*f.CoefficientBits + dim*f.CentroidBits
	scales := 1 + tokens
	if f.CentroidBits == 4 {
		scales += groups - 1
	}
	switch {
	case f.BasisBits == 16:
	case f.Grouped:
		scales += f.Rank * groups
	default:
		scales += f.Rank
	}
	return (float64(bits)/8 + 2*float64(scales)) / float64(f.Pages)
}

// Stored is the summary as its codes hold it. Centre is the head's mean key [dim], which the form of 4-bit centroids subtracts
// before and adds after; nil is zero.
func (s Summary) Stored(f Form, centre []float64) Dequantised {
	cut := s.Truncate(f.Rank, f.BasisBits)
	out := Dequantised{Shape: cut.Shape, Mu: cut.Mu, V: cut.V, C: cut.C}
	if f.BasisBits == 0 {
		return out
	}
	if f.CoefficientBits == 8 && f.CentroidBits == 8 && !f.Grouped {
		return cut.Quantise().Dequantise()
	}
	if s.NonFinite {
		return cut.Quantise().Dequantise()
	}
	d := s.HeadDim
	if f.CentroidBits == 4 {
		rest := append([]float64{}, cut.Mu...)
		if centre != nil {
			axpy(rest, -1, centre)
		}
		out.Mu = requantisedGroups(rest, 4, GroupDims)
		if centre != nil {
			axpy(out.Mu, 1, centre)
		}
	} else {
		out.Mu = requantised(cut.Mu, 8)
	}
	group := d
	if f.Grouped {
		group = GroupDims
	}
	out.V = nil
	for r := range f.Rank {
		row := cut.V[r*d : (r+1)*d]
		if f.BasisBits == 16 {
			out.V = append(out.V, rounded(row)...)
		} else {
			out.V = append(out.V, requantisedGroups(row, f.BasisBits, group)...)
		}
	}
	out.C = nil
	for t := range s.PageSize {
		out.C = append(out.C, requantisedUnder(TokenScale, cut.C[t*f.Rank:(t+1)*f.Rank], f.CoefficientBits)...)
	}
	return out
}

// requantisedGroups gives every group of x a scale of its own.
func requantisedGroups(x []float64, bits, group int) []float64 {
	out := make([]float64, 0, len(x))
	for at := 0; at < len(x); at += group {
		out = append(out, requantised(x[at:at+group], bits)...)
	}
	return out
}

// rounded is x in bf16.
func rounded(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = FromBF16(ToBF16(v))
	}
	return out
}
