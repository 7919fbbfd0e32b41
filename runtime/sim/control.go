package sim

import "github.com/kvloom/kvloom/runtime/sim/ptx"

var _ = register(map[string]func(c *lowering) step{
	"bra": lowerBra, "brx": lowerBrx, "ret": lowerExit, "exit": lowerExit, "trap": lowerTrap, "brkpt": lowerTrap, "nanosleep": lowerNanosleep,
	"setmaxnreg": lowerSetmaxnreg, "griddepcontrol": lowerGriddepcontrol, "pmevent": lowerNothing, "createpolicy": lowerCreatepolicy,
})

func lowerNothing(c *lowering) step { return nil }

func lowerBra(c *lowering) step {
	c.has("uni")
	c.args(1, 1)
	o := c.arg(0)
	if o.Kind != ptx.Label {
		c.failf("a label is wanted")
	}
	c.out.kind, c.out.target = kBranch, int32(o.Target)
	return nil
}

func lowerBrx(c *lowering) step {
	if !c.has("idx") {
		c.failf("only brx.idx is known")
	}
	c.has("uni")
	c.args(2, 2)
	c.out.kind, c.out.index = kIndex, c.src(0, "u32").slot
	for _, t := range c.in.Targets {
		c.out.targets = append(c.out.targets, int32(t))
	}
	if len(c.out.targets) == 0 {
		c.failf("no .branchtargets")
	}
	return nil
}

func lowerExit(c *lowering) step {
	c.has("uni")
	c.args(0, 0)
	c.out.kind = kExit
	return nil
}

func lowerTrap(c *lowering) step {
	c.args(0, 0)
	return func(w *warp, m uint32) { w.failf(firstLane(m), kindTrap, "the kernel gave up here") }
}

// lowerNanosleep gives other warps a turn; there is no time to wait for.
func lowerNanosleep(c *lowering) step {
	c.has("u32")
	c.args(1, 1)
	c.any(c.arg(0), "u32")
	return func(w *warp, m uint32) {
		w.rotate()
		w.state, w.stop = polling, true
	}
}

// lowerSetmaxnreg checks the operand; registers are never short here.
func lowerSetmaxnreg(c *lowering) step {
	if c.oneOf("inc", "dec") == "" || !c.has("sync") || !c.has("aligned") {
		c.failf("want .inc or .dec, .sync.aligned")
	}
	c.has("u32")
	if n := c.imm(0); n < 24 || n > 256 || n%8 != 0 {
		c.failf("register count %d: 24 to 256 in steps of 8", n)
	}
	return nil
}

// lowerGriddepcontrol has nothing to do, as launches of a stream run one after the other, but to tell the sanitizer of a wait.
func lowerGriddepcontrol(c *lowering) step {
	what := c.oneOf("wait", "launch_dependents")
	if what == "" {
		c.failf("want .wait or .launch_dependents")
	}
	c.args(0, 0)
	if what == "wait" {
		return func(w *warp, m uint32) {
			if w.san != nil {
				w.san.waited = true
			}
		}
	}
	return nil
}

// lowerCreatepolicy makes a cache policy, an opaque number.
func lowerCreatepolicy(c *lowering) step {
	for c.oneOf("fractional", "range", "cvt", "L2", "global", "L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged") != "" {
	}
	c.typ()
	c.args(1, 4)
	return copy64(c.dst(0, "b64").slot, c.constant64(0))
}
