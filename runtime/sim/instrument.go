package sim

// Counters of one kernel.
type Counters struct{}

type counting struct{}

type sanitizer struct{}

type globalShadow struct{}

type sharedShadow struct{}

type warpShadow struct{}

func (s *sharedShadow) barrier([]*warp) {}

func (s *sanitizer) begin(*unit) {}

func (l *launch) instrument() {}

func (l *launch) collect() {}

func (w *warp) observe(in *inst, m uint32) {}

func (d *Device) noteWrite(p uint64, n int64) {}

func (d *Device) noteCopy(dst, src uint64, n int64) {}

// watch is called with the addresses of a memory access.
func (w *warp) watch(a *access, m uint32) {}

func (w *warp) fenced(m uint32, proxy bool, scope string) {}

func (w *warp) warpSynced(members uint32) {}

func (w *warp) clusterArrived() {}

func (w *warp) clusterWaited() {}

func (u *unit) clusterOpened() {}

func (w *warp) asyncLanded(group []asyncCopy) {}

func (w *warp) mbarrierNew(addr uint64) {}

func (w *warp) mbarrierGone(addr uint64) {}

func (w *warp) mbarrierArrived(addr uint64, lanes uint32) {}

func (w *warp) mbarrierWaited(addr uint64, lanes uint32, phase int) {}

func (w *warp) mbarrierSignalled(addr uint64, lane int) {}

func (w *warp) bulkCommitted(m uint32) {}

func (w *warp) bulkWaited(m uint32) {}

func (w *warp) bulkCopied(lane int, d *access, to uint64, s *access, from, n uint64, signal bool) {}

// tensorOps counts multiply-adds of matrix instructions.
func (w *warp) tensorOps(n int) {}
