// Package audit checks on given keys, values and queries what DropKV's guarantee rests on: the cone condition, the probability of what
// is evicted, and, on subsets small enough to enumerate, how far the chosen eviction is from the best one.
package audit
