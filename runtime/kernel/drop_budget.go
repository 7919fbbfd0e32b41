package kernel

import "math"

// Keep is how many tokens of a prompt of n a head keeps, as the kernels reckon it: max(ceil(Ratio n), Window, 1), at most n; of a
// layer of a pyramid, what that layer keeps. Under adaptive budgets it is the mean over heads.
func (b DropBudget) Keep(n int) int {
	keep := int64(b.Tokens)
	if b.Ratio > 0 {
		keep = int64(math.Ceil(b.Ratio * float64(n) * (1 - 1e-12)))
	}
	window := int64(b.Window)
	if b.Layers > 0 {
		open := max(keep, window) - window
		low := open / 20
		high := 2*open - low
		if all := max(int64(n)-window, 0); high >= all {
			high, low = all, 2*open-all
		}
		keep = open
		if b.Layers > 1 {
			keep = max(high-int64(b.Layer)*((high-low)/(int64(b.Layers)-1)), 0)
		}
		keep += window
	}
	return int(min(int64(n), max(keep, window, 1)))
}

// Slots is what no head exceeds for prompts of up to maxTokens: what DropSelect's Slots must be at least. Adaptive budgets may give one
// head of kvHeads all that the others leave; kvHeads 1 is for other kinds.
func (b DropBudget) Slots(maxTokens, kvHeads int) int {
	mean := b
	mean.Layers = 0 // uniform budgets grow with n, those of a pyramid's layer need not
	most := int64(mean.Keep(maxTokens))
	if b.Layers > 0 {
		most = int64(b.Window) + 2*max(most-int64(b.Window), 0)
	}
	return int(min(int64(maxTokens), most*int64(kvHeads)))
}
