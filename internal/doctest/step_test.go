package doctest

import (
	"errors"

	"github.com/kvloom/kvloom/out/smollm2135m"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// layer is the device memory of one attention layer, all of it the caller's: the README's example runs on it.
type layer struct {
	cache                      kernel.KVCache
	summaries, builtLens       device.Ptr
	q, scores, out, lse        device.Ptr
	pages, counts              device.Ptr
	build, score, pick, attend device.Ptr // workspaces, zeroed once
}

// step is one decode step of a layer. It may be captured into a graph: nothing in it allocates or waits.
func step(k *smollm2135m.Kernels, s device.Stream, l *layer, w kernel.Workload) error {
	return errors.Join(
		k.PageSummary(s, smollm2135m.NewPageSummaryArgs(l.cache, l.summaries, l.builtLens, l.build), w, 1),
		k.PageScore(s, smollm2135m.NewPageScoreArgs(l.cache, l.q, l.summaries, l.scores, l.score), w),
		k.PageSelect(s, smollm2135m.NewPageSelectArgs(l.cache, l.scores, l.pages, l.counts, l.pick), w),
		k.PageAttend(s, smollm2135m.NewPageAttendArgs(l.cache, l.q, l.pages, l.counts, l.out, l.lse, l.attend), w),
	)
}
