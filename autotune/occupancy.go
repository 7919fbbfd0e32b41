package autotune

import (
	"math"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Occupancy is how many blocks of a kernel an SM holds, and what limits it.
type Occupancy struct {
	Blocks int     `json:"blocks"` // an SM
	Warps  int     `json:"warps"`  // an SM
	Share  float64 `json:"share"`  // of the warps that an SM can hold
	Limit  string  `json:"limit"`  // registers, shared memory, threads, blocks
}

// Limits of compute capabilities 8.0 and 9.0, from CUDA's programming guide.
const (
	blocksPerSM    = 32
	registerGrain  = 256     // of a warp
	sharedReserved = 1 << 10 // of each block
)

// OccupancyOf computes it from a kernel's threads, registers a thread and bytes of shared memory a block.
func OccupancyOf(threads, registers, shared int, dev device.Info) Occupancy {
	warps := (threads + 31) / 32
	o := Occupancy{Blocks: blocksPerSM, Limit: "blocks"}
	limit := func(n int, what string) {
		if n < o.Blocks {
			o.Blocks, o.Limit = n, what
		}
	}
	limit(dev.ThreadsPerSM/max(threads, 1), "threads")
	if registers > 0 {
		ofWarp := (registers*32 + registerGrain - 1) / registerGrain * registerGrain
		limit(dev.RegistersPerSM/ofWarp/max(warps, 1), "registers")
	}
	limit(dev.SharedPerSM/(shared+sharedReserved), "shared memory")
	o.Warps = o.Blocks * warps
	o.Share = float64(32*o.Warps) / float64(max(dev.ThreadsPerSM, 1))
	return o
}

// The machine of the estimate. Only the order of candidates follows from it, so that rough numbers of an H200 serve for all.
const (
	bytesPerUS   = 4.0e6 // read bandwidth
	flopsPerUS   = 200e6 // of multiply-adds in half precision that kernels of this kind reach
	inFlight     = 32e3  // bytes an SM must have under way for the whole bandwidth: bandwidth x latency / SMs
	threadBytes  = 32    // that a thread without a ring has under way
	launchUS     = 2.0
	waveUS       = 3.0
	assumeThread = 144 // registers where the plan says nothing
)

// Estimate guesses a candidate's time for a workload, microseconds, before it was compiled: bytes and flops of the plan's model, at the
// bandwidth that the blocks on the machine can draw. It is for the order of measuring, not for a person.
func Estimate(c plan.Candidate, cost plan.Work, p launch.Problem, dev device.Info) float64 {
	grid := int64(1)
	for _, e := range c.Geometry.Grid {
		grid *= e.Value(p)
	}
	registers := assumeThread
	if c.MinBlocks > 1 {
		registers = min(255, dev.RegistersPerSM/(c.Geometry.Block*c.MinBlocks)/8*8)
	}
	o := OccupancyOf(c.Geometry.Block, registers, c.Geometry.DynamicShared, dev)
	sms := max(int64(dev.SMs), 1)
	perSM := min(int64(max(o.Blocks, 1)), (grid+sms-1)/sms)
	waves := float64((grid + perSM*sms - 1) / (perSM * sms))
	underWay := float64(perSM) * float64(max(c.Geometry.DynamicShared, threadBytes*c.Geometry.Block))
	draw := math.Pow(min(1, underWay/inFlight), 0.7) * min(1, float64(grid)/float64(sms))
	return launchUS + waves*waveUS + max(float64(cost.Bytes)/(bytesPerUS*draw), float64(cost.Flops)/(flopsPerUS*min(1, float64(grid)/float64(sms))))
}

// problemOf is a workload's problem on a device.
func problemOf(s *specs.Spec, w specs.Workload, sms int) launch.Problem {
	page := s.Cache.PageSize
	pages := int64((w.Context + page - 1) / page)
	lists := int64(s.Attention.KVHeads)
	if s.Locks.Combine == "per_head" {
		lists = int64(s.Attention.QueryHeads)
	}
	return launch.Problem{Batch: int64(w.Batch), KVHeads: int64(s.Attention.KVHeads), QHeads: int64(s.Attention.QueryHeads), Lists: lists,
		MaxPages: pages, NewPages: pages, Slots: int64(s.Slots()), SMs: int64(sms)}
}

// CostOf is the model of a work: that of its family, and for dense attention all of K and V.
func CostOf(p *plan.Plan, work measure.Work, w specs.Workload) plan.Work {
	if work != measure.Dense {
		return p.Of(work.Family()).Cost(w)
	}
	a := p.Spec.Attention
	tokens := int64(w.Batch) * int64(w.Context)
	return plan.Work{Bytes: tokens * int64(a.KVHeads) * int64(a.HeadDim) * 4, Flops: tokens * int64(a.QueryHeads) * int64(a.HeadDim) * 4,
		Exponential: tokens * int64(a.QueryHeads)}
}
