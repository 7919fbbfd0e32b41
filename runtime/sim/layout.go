package sim

import "github.com/kvloom/kvloom/runtime/sim/ptx"

func alignUp(n, a int64) int64 { return (n + a - 1) / a * a }

// layout gives every variable that the kernel names a place.
func (c *lowering) layout() {
	used := map[string]bool{}
	for i := range c.fn.Code {
		for _, a := range c.fn.Code[i].Args {
			named(a, used)
		}
	}
	offset := int64(0)
	for _, p := range c.fn.Params {
		offset = alignUp(offset, int64(p.Align))
		c.vars[p.Name] = place{"param", offset, p.Size}
		offset += p.Size
	}
	shared, local := int64(0), int64(0)
	var dynamic []ptx.Var
	for _, v := range append(append([]ptx.Var(nil), c.mod.ast.Vars...), c.fn.Vars...) {
		switch v.Space {
		case "global", "const":
			if a := c.mod.globals[v.Name]; a != nil {
				c.vars[v.Name] = place{"global", int64(a.base), v.Size}
			} else if used[v.Name] {
				c.failf("extern variable %s is defined nowhere", v.Name)
			}
		case "shared":
			if v.Extern || v.Size == 0 {
				dynamic = append(dynamic, v)
				continue
			}
			if !used[v.Name] {
				continue
			}
			shared = alignUp(shared, int64(v.Align))
			c.vars[v.Name] = place{"shared", sharedBase + shared, v.Size}
			shared += v.Size
		case "local", "param":
			local = alignUp(local, int64(max(v.Align, 8)))
			c.vars[v.Name] = place{"local", local, v.Size}
			local += v.Size
		}
	}
	c.k.staticShared = int(shared)
	for _, v := range dynamic {
		if used[v.Name] {
			shared = alignUp(shared, int64(max(v.Align, 16)))
		}
	}
	for _, v := range dynamic {
		c.vars[v.Name] = place{"shared", sharedBase + shared, 0}
	}
	c.k.dynamicAt = int(shared)
	c.k.localBytes = int(alignUp(local, 16))
}

func named(o ptx.Operand, used map[string]bool) {
	if o.Kind == ptx.Symbol {
		used[o.Name] = true
	}
	for _, e := range o.Elems {
		named(e, used)
	}
}

func (c *lowering) paramBytes() int {
	n := int64(0)
	for _, p := range c.fn.Params {
		n = alignUp(n, int64(p.Align)) + p.Size
	}
	return int(n)
}
