// Package groups counts groups of neighbouring pages that share a summary: the same for specs, which lay a list out, and for the thin
// runtime, which must not know specs.
package groups

// First is how many groups hold the first pages of a request.
func First(pages, group int) int { return (pages + group - 1) / group }

// Last is how many groups hold its last pages, wherever in a group they begin.
func Last(pages, group int) int {
	if pages == 0 {
		return 0
	}
	return (pages+group-2)/group + 1
}
