package sim

import (
	"math/bits"
	"slices"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// regUse is a virtual register that an instruction reads or writes.
type regUse = int32

// flow is what is known of a function's control and data flow, by instruction.
type flow struct {
	join       []int32 // immediate post-dominator of a branch: where its lanes meet again; -1: at the exit
	spin       []bool  // back edge of a loop that polls memory
	uses, defs [][]regUse
	blocks     []basic
	blockOf    []int32
}

// basic is a basic block: instructions [from, to).
type basic struct {
	from, to int
	next     []int // blocks; len(blocks) is the exit
}

func isExit(in *ptx.Instr) bool { return in.Op == "ret" || in.Op == "exit" || in.Op == "trap" }

// branchTargets are the instructions a branch may jump to.
func branchTargets(in *ptx.Instr) []int {
	switch in.Op {
	case "bra":
		if len(in.Args) == 1 && in.Args[0].Kind == ptx.Label {
			return []int{in.Args[0].Target}
		}
	case "brx":
		return in.Targets
	}
	return nil
}

func analyse(f *ptx.Func) *flow {
	n := len(f.Code)
	fl := &flow{join: make([]int32, n), spin: make([]bool, n), uses: make([][]regUse, n), defs: make([][]regUse, n), blockOf: make([]int32, n)}
	fl.split(f)
	post := fl.postDominators()
	for b, bb := range fl.blocks {
		last := bb.to - 1
		for i := bb.from; i < bb.to; i++ {
			fl.join[i] = -1
			fl.blockOf[i] = int32(b)
			fl.uses[i], fl.defs[i] = operandsOf(&f.Code[i])
		}
		if p := post[b]; p >= 0 && p < len(fl.blocks) {
			fl.join[last] = int32(fl.blocks[p].from)
		}
	}
	fl.findSpins(f)
	return fl
}

// split cuts the code into basic blocks.
func (fl *flow) split(f *ptx.Func) {
	n := len(f.Code)
	leader := make([]bool, n+1)
	leader[0] = true
	for i := range f.Code {
		in := &f.Code[i]
		targets := branchTargets(in)
		for _, t := range targets {
			leader[t] = true
		}
		if len(targets) > 0 || isExit(in) {
			leader[i+1] = true
		}
	}
	start := make([]int, n+1) // block that starts at an instruction
	for i := 0; i < n; i++ {
		if leader[i] {
			start[i] = len(fl.blocks)
			fl.blocks = append(fl.blocks, basic{from: i})
		}
		fl.blocks[len(fl.blocks)-1].to = i + 1
	}
	exit := len(fl.blocks)
	start[n] = exit
	for b := range fl.blocks {
		bb := &fl.blocks[b]
		in := &f.Code[bb.to-1]
		targets := branchTargets(in)
		for _, t := range targets {
			bb.next = append(bb.next, start[t])
		}
		falls := len(targets) == 0 || in.Guard >= 0
		if isExit(in) {
			bb.next = append(bb.next, exit)
			falls = in.Guard >= 0
		}
		if falls {
			if bb.to == n {
				bb.next = append(bb.next, exit)
			} else {
				bb.next = append(bb.next, start[bb.to])
			}
		}
	}
}

// postDominators returns the immediate post-dominator of each block; len(blocks) is the exit, -1 means that the exit cannot be
// reached. It is the iterative algorithm of Cooper, Harvey and Kennedy on the reversed graph.
func (fl *flow) postDominators() []int {
	exit := len(fl.blocks)
	prev := make([][]int, exit+1)
	for b, bb := range fl.blocks {
		for _, s := range bb.next {
			prev[s] = append(prev[s], b)
		}
	}
	order, number := reversePostorder(exit, prev)
	idom := make([]int, exit+1)
	for i := range idom {
		idom[i] = -1
	}
	idom[exit] = exit
	for changed := true; changed; {
		changed = false
		for _, b := range order[1:] {
			best := -1
			for _, s := range fl.blocks[b].next {
				if idom[s] < 0 {
					continue
				}
				if best < 0 {
					best = s
				} else {
					best = meet(idom, number, best, s)
				}
			}
			if best != idom[b] {
				idom[b] = best
				changed = true
			}
		}
	}
	return idom[:exit]
}

func meet(idom, number []int, a, b int) int {
	for a != b {
		for number[a] > number[b] {
			a = idom[a]
		}
		for number[b] > number[a] {
			b = idom[b]
		}
	}
	return a
}

// reversePostorder walks the graph from root along edges, without recursion.
func reversePostorder(root int, edges [][]int) (order, number []int) {
	number = make([]int, len(edges))
	seen := make([]bool, len(edges))
	type frame struct{ node, next int }
	stack := []frame{{root, 0}}
	seen[root] = true
	var post []int
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if top.next < len(edges[top.node]) {
			s := edges[top.node][top.next]
			top.next++
			if !seen[s] {
				seen[s] = true
				stack = append(stack, frame{s, 0})
			}
			continue
		}
		post = append(post, top.node)
		stack = stack[:len(stack)-1]
	}
	for i := len(post) - 1; i >= 0; i-- {
		number[post[i]] = len(order)
		order = append(order, post[i])
	}
	return order, number
}

// polls reports whether an instruction may be how a loop waits for another thread.
func polls(in *ptx.Instr) bool {
	switch in.Op {
	case "atom", "nanosleep":
		return true
	case "ld":
		for _, m := range in.Mods {
			switch m {
			case "volatile", "acquire", "relaxed", "cv":
				return true
			}
		}
	case "mbarrier":
		return len(in.Mods) > 0 && (in.Mods[0] == "test_wait" || in.Mods[0] == "try_wait")
	}
	return false
}

// findSpins marks back edges whose loop contains a polling instruction: the loop's body is taken to be the text between the
// target and the branch, which is how compilers lay loops out.
func (fl *flow) findSpins(f *ptx.Func) {
	count := make([]int, len(f.Code)+1)
	for i := range f.Code {
		count[i+1] = count[i]
		if polls(&f.Code[i]) {
			count[i+1]++
		}
	}
	for i := range f.Code {
		for _, t := range branchTargets(&f.Code[i]) {
			if t <= i && count[i+1] > count[t] {
				fl.spin[i] = true
			}
		}
	}
}

// bitset is a set of small numbers.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) add(i int32)    { b[i/64] |= 1 << (i % 64) }
func (b bitset) remove(i int32) { b[i/64] &^= 1 << (i % 64) }

// orNot adds x without y and reports a change.
func (b bitset) orNot(x, y bitset) bool {
	changed := false
	for i := range b {
		v := b[i] | x[i]&^y[i]
		if v != b[i] {
			b[i], changed = v, true
		}
	}
	return changed
}

func (b bitset) each(f func(int32)) {
	for i, v := range b {
		for ; v != 0; v &= v - 1 {
			f(int32(i*64 + bits.TrailingZeros64(v)))
		}
	}
}

// noResult are opcodes whose first operand is a source.
var noResult = map[string]bool{"st": true, "bra": true, "bar": true, "barrier": true, "red": true, "ret": true, "exit": true, "prefetch": true,
	"prefetchu": true, "membar": true, "fence": true, "trap": true, "nanosleep": true, "stmatrix": true, "brx": true, "discard": true,
	"applypriority": true, "griddepcontrol": true, "setmaxnreg": true, "pmevent": true, "brkpt": true}

// operandsOf lists the registers that an instruction reads and writes. A guarded write keeps the old value of other lanes, which
// is why it counts as a read as well.
func operandsOf(in *ptx.Instr) (uses, defs []regUse) {
	results := 1
	switch {
	case (in.Op == "bar" || in.Op == "barrier") && slices.Contains(in.Mods, "red"):
	case noResult[in.Op], in.Op == "cp":
		results = 0
	case in.Op == "mbarrier":
		if len(in.Args) == 0 || in.Args[0].Kind == ptx.Address {
			results = 0
		}
	case in.Op == "wgmma":
		if len(in.Mods) > 0 && in.Mods[0] != "mma_async" {
			results = 0
		}
	case in.Op == "tensormap":
		results = 0
	}
	for i := range in.Args {
		if i < results {
			collectRegs(&in.Args[i], &defs)
			if in.Op == "wgmma" {
				collectRegs(&in.Args[i], &uses)
			}
		} else {
			collectRegs(&in.Args[i], &uses)
		}
	}
	if in.Guard >= 0 {
		uses = append(uses, regUse(in.Guard))
	}
	return uses, defs
}

func collectRegs(o *ptx.Operand, out *[]regUse) {
	if o.Kind == ptx.Register {
		*out = append(*out, regUse(o.Reg))
	}
	for i := range o.Elems {
		collectRegs(&o.Elems[i], out)
	}
}
