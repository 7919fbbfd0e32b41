// Package kernel is all that a serving process needs: it opens a bundle of tuned kernels, looks up the one for a workload, loads it and
// launches it on the caller's stream. It neither compiles nor tunes.
package kernel
