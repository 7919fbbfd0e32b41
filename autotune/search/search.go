// Package search orders candidates for measuring. Strategies are pure and seeded: the same plan and seed give the same order, with
// no GPU.
package search

import "math/rand/v2"

// Exhaustive is the number of candidates up to which a space is measured in plan order, whole.
const Exhaustive = 64

// Order returns the indices of n candidates in the order in which to measure them: the default (index 0) first, then the rest in
// plan order when the space is small, else in random order from the seed. The budget decides how far a run gets.
func Order(n int, seed uint64) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	if n > Exhaustive {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		r.Shuffle(n-1, func(i, j int) { order[i+1], order[j+1] = order[j+1], order[i+1] })
	}
	return order
}
