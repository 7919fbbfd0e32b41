// Package launch describes launch geometry as data: gen/plan writes it, the bundle stores it as JSON, runtime/kernel evaluates it.
package launch

import (
	"fmt"
	"math"

	"github.com/kvloom/kvloom/runtime/device"
)

// Quantity names a run-time number of a problem that grids and workspaces depend on.
type Quantity string

// The quantities.
const (
	One       Quantity = "one"
	Batch     Quantity = "batch"
	KVHeads   Quantity = "kv_heads"
	QHeads    Quantity = "q_heads"
	Lists     Quantity = "lists" // page lists a request: kv heads, or query heads for per_head
	MaxPages  Quantity = "max_pages"
	NewPages  Quantity = "new_pages"  // pages a request that one build launch is sized for; any number stays right
	StepHeads Quantity = "step_heads" // kv heads where a build launch is sized for one page a request, as in a decode step; else 1
	Slots     Quantity = "slots"
	SMs       Quantity = "sms"
)

// Problem holds the value of each quantity.
type Problem struct {
	Batch, KVHeads, QHeads, Lists, MaxPages, NewPages, Slots, SMs int64
}

// Value returns one quantity. An unknown name is a broken invariant.
func (p Problem) Value(q Quantity) int64 {
	switch q {
	case One:
		return 1
	case Batch:
		return p.Batch
	case KVHeads:
		return p.KVHeads
	case QHeads:
		return p.QHeads
	case Lists:
		return p.Lists
	case MaxPages:
		return p.MaxPages
	case NewPages:
		return p.NewPages
	case StepHeads:
		if p.NewPages > 1 {
			return 1
		}
		return p.KVHeads
	case Slots:
		return p.Slots
	case SMs:
		return p.SMs
	}
	panic(fmt.Sprintf("BUG: launch: unknown quantity %q", q))
}

// Extent is ceil(Times * product(Of) / Per), at least 1 and at most AtMost where AtMost > 0.
type Extent struct {
	Of     []Quantity `json:"of,omitempty"`
	Times  int64      `json:"times"`
	Per    int64      `json:"per"`
	AtMost int64      `json:"at_most,omitempty"`
}

// Const is an extent that does not depend on the problem.
func Const(n int64) Extent { return Extent{Times: n, Per: 1} }

// Each is one block for each unit of the product of quantities.
func Each(of ...Quantity) Extent { return Extent{Of: of, Times: 1, Per: 1} }

// Value evaluates the extent.
func (e Extent) Value(p Problem) int64 {
	n := e.Times
	for _, q := range e.Of {
		n *= p.Value(q)
	}
	n = (n + e.Per - 1) / e.Per
	if e.AtMost > 0 {
		n = min(n, e.AtMost)
	}
	return max(n, 1)
}

// Geometry is everything a launch needs besides its arguments.
type Geometry struct {
	Grid          [3]Extent `json:"grid"`
	Block         int       `json:"block"`   // threads
	Cluster       int       `json:"cluster"` // blocks along x; 1: none
	DynamicShared int       `json:"dynamic_shared"`
	Dependent     bool      `json:"dependent"`           // it waits for launches before it (griddepcontrol.wait), so it may be started early
	Workspace     []Extent  `json:"workspace,omitempty"` // bytes: the sum of the extents, each rounded up to 256
	First         *First    `json:"first,omitempty"`     // a kernel of the same module that is launched before, with the same arguments
}

// First is the geometry of the first of two kernels. It waits for launches before it; the second starts early and waits for it.
type First struct {
	Entry string    `json:"entry"` // extern "C" name
	Grid  [3]Extent `json:"grid"`
	Block int       `json:"block"` // threads
	// DynamicShared is a block's, in bytes.
	DynamicShared int `json:"dynamic_shared"`
	Counters      int `json:"counters"` // the extent of the workspace that both leave zeroed; the others hold what one leaves for the other
}

// Counters is the part of the workspace that launches leave zeroed, in bytes: all of it where a work is one kernel's.
func (g *Geometry) Counters(p Problem) (offset, size int64) {
	if g.First == nil {
		return 0, g.WorkspaceBytes(p)
	}
	before := Geometry{Workspace: g.Workspace[:g.First.Counters]}
	return before.WorkspaceBytes(p), g.Workspace[g.First.Counters].Value(p)
}

// Blocks evaluates the grid: thread blocks along each axis. A grid that CUDA cannot launch is an error.
func (g *Geometry) Blocks(p Problem) (grid [3]uint32, err error) { return blocks(&g.Grid, p) }

func blocks(extents *[3]Extent, p Problem) (grid [3]uint32, err error) {
	for i := range extents {
		n := extents[i].Value(p)
		if n > math.MaxInt32 || i > 0 && n > 65535 {
			return grid, fmt.Errorf("a grid of %d blocks along axis %d is more than CUDA has; split the batch", n, i)
		}
		grid[i] = uint32(n)
	}
	return grid, nil
}

// Launch evaluates the geometry for a problem. It allocates nothing.
func (g *Geometry) Launch(p Problem) (device.Launch, error) {
	grid, err := g.Blocks(p)
	l := device.Launch{Grid: grid, Block: [3]uint32{uint32(g.Block), 1, 1}, Cluster: [3]uint32{uint32(max(g.Cluster, 1)), 1, 1},
		DynamicShared: uint32(g.DynamicShared), Dependent: g.Dependent}
	if g.First != nil && err == nil {
		l.Before.Block, l.Before.DynamicShared = [3]uint32{uint32(g.First.Block), 1, 1}, uint32(g.First.DynamicShared)
		l.Before.Grid, err = blocks(&g.First.Grid, p)
	}
	return l, err
}

// WorkspaceBytes is what the caller allocates and zeroes once.
func (g Geometry) WorkspaceBytes(p Problem) int64 {
	var total int64
	for _, e := range g.Workspace {
		total += (e.Value(p) + 255) / 256 * 256
	}
	return total
}
