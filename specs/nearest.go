package specs

import "strings"

// Nearest returns the candidate that a person probably meant by word, whatever its case: the one with the fewest edits, if those are no more
// than a third of the word and a bit. The first of equals wins, so the answer does not depend on map order.
func Nearest(word string, candidates []string) (string, bool) {
	word = strings.ToLower(word)
	best, least := "", len(word)/3+2
	for _, c := range candidates {
		if n := edits(word, c); n < least {
			best, least = c, n
		}
	}
	return best, best != ""
}

// edits is the Levenshtein distance in bytes, where a swap of neighbours counts once (the commonest slip of fingers).
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
