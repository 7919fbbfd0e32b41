package reference

import (
	"fmt"
	"math"
)

// Combine is how a group's page scores become one value a page.
type Combine string

// The rules, as specs spell them.
const (
	ShareAverage   Combine = "share_average"   // mean over heads of the head's share exp(s - LSE over all pages)
	GroupMax       Combine = "group_max"       // max over heads of s
	GroupMass      Combine = "group_mass"      // log-sum-exp over heads of s
	PeakNormalised Combine = "peak_normalised" // mean over heads of exp(s - max over pages of s)
	PerHead        Combine = "per_head"        // s itself: one list a query head
)

// ParseCombine names a rule as specs do.
func ParseCombine(name string) (Combine, error) {
	switch c := Combine(name); c {
	case ShareAverage, GroupMax, GroupMass, PeakNormalised, PerHead:
		return c, nil
	}
	return "", fmt.Errorf("combine rule %q is unknown; use share_average, group_max, group_mass, peak_normalised or per_head", name)
}

// Logarithmic reports whether the rule's values are natural logarithms rather than shares.
func (c Combine) Logarithmic() bool { return c == GroupMax || c == GroupMass || c == PerHead }

// SmallestShare is where a share stops to count: below it, it is 0 in kernels and here.
const SmallestShare = 0x1p-100

// Values combines the scores [group][pages] of one KV head; per_head takes a group of one.
//
// NaN: a head's NaN score is no vote of that head; a page that is NaN for every head has the value NaN and ranks below -inf. A head
// without a finite or +inf page contributes 0 shares.
func (c Combine) Values(scores [][]float64) []float64 {
	n := len(scores[0])
	values := make([]float64, n)
	votes := make([]bool, n) // some head has a score
	for _, row := range scores {
		for j, s := range row {
			votes[j] = votes[j] || !math.IsNaN(s)
		}
	}
	switch c {
	case ShareAverage, PeakNormalised:
		for _, row := range scores {
			for j, share := range c.shares(row) {
				values[j] += share / float64(len(scores))
			}
		}
	case GroupMax, PerHead, GroupMass:
		column := make([]float64, 0, len(scores))
		for j := range values {
			column = column[:0]
			for _, row := range scores {
				if !math.IsNaN(row[j]) {
					column = append(column, row[j])
				}
			}
			values[j] = math.Inf(-1)
			if c == GroupMass {
				values[j] = LSE(column)
			} else {
				for _, s := range column {
					values[j] = max(values[j], s)
				}
			}
		}
	default:
		panic(fmt.Sprintf("BUG: reference: combine rule %q", c))
	}
	for j := range values {
		if !votes[j] {
			values[j] = math.NaN()
		}
	}
	return values
}

// shares are one head's shares: of the total for share_average, of the peak for peak_normalised. NaN pages and shares below
// SmallestShare are 0. Pages at +inf divide a share of 1 equally; for peak_normalised each of them is the peak, 1.
func (c Combine) shares(row []float64) []float64 {
	shares := make([]float64, len(row))
	finite := make([]float64, 0, len(row))
	var infinite int
	for _, s := range row {
		switch {
		case math.IsNaN(s):
		case math.IsInf(s, 1):
			infinite++
		default:
			finite = append(finite, s)
		}
	}
	if infinite > 0 {
		for j, s := range row {
			if math.IsInf(s, 1) {
				shares[j] = 1
				if c == ShareAverage {
					shares[j] = 1 / float64(infinite)
				}
			}
		}
		return shares
	}
	unit := LSE(finite)
	if c == PeakNormalised {
		unit = math.Inf(-1)
		for _, s := range finite {
			unit = max(unit, s)
		}
	}
	if math.IsInf(unit, -1) {
		return shares
	}
	for j, s := range row {
		if share := math.Exp(s - unit); share >= SmallestShare {
			shares[j] = share
		}
	}
	return shares
}
