// Package kernel is all that a serving process needs: it opens a bundle of tuned kernels, looks up the one for a workload, loads it and
// launches it on the caller's stream. It neither compiles nor tunes.
//
//	b, err := kernel.Open("llama-3.1-8b.kvb")  // checked whole; an error names the file and the reason
//	set, err := b.Load(dev)                     // cubins on the architecture that was tuned on, portable PTX elsewhere
//	err = set.PageScore(stream, &args, workload) // checked, looked up and enqueued; nothing is allocated
//
// Generated packages below out/ wrap a Set for one model, with constructors that fill in strides and constants.
package kernel
