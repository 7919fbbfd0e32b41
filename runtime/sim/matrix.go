package sim

var _ = register(map[string]func(c *lowering) step{"ldmatrix": lowerLdmatrix, "stmatrix": lowerStmatrix, "movmatrix": lowerMovmatrix})

// matrices takes .x1, .x2 or .x4.
func (c *lowering) matrices() int {
	switch c.oneOf("x1", "x2", "x4") {
	case "x1":
		return 1
	case "x2":
		return 2
	case "x4":
		return 4
	}
	c.failf("want .x1, .x2 or .x4")
	return 0
}

// full checks that all 32 lanes execute a warp-wide matrix instruction.
func (w *warp) full(m uint32) bool {
	if m == allLanes {
		return true
	}
	if m == w.mask && w.live == allLanes {
		return w.gather(allLanes)
	}
	w.failf(firstLane(m), kindDivergence, "a matrix instruction needs all 32 lanes; only %#08x are here", m)
	return false
}

// lowerLdmatrix loads 8x8 matrices of 16-bit elements: lane 8i+r gives the address of row r of matrix i; lane l receives elements
// 2(l%4) and 2(l%4)+1 of row l/4, or of column l/4 when transposed.
func lowerLdmatrix(c *lowering) step {
	if !c.has("sync") || !c.has("aligned") || !c.has("m8n8") {
		c.failf("want ldmatrix.sync.aligned.m8n8")
	}
	n, trans := c.matrices(), c.has("trans")
	if c.oneOf("shared", "shared::cta") == "" {
		c.failf("want .shared")
	}
	if !c.has("b16") {
		c.failf("want .b16")
	}
	c.args(2, 2)
	a := c.address(1, spShared, 16)
	dst := c.elements(c.arg(0), n, "b32", true)
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		rows := uint32(1)<<(8*n-1)<<1 - 1
		a.addresses(w, rows)
		for k, d := range dst {
			var tile [8]*[8]uint16
			for r := range tile {
				p := w.pointer(&a, 8*k+r, w.addr[8*k+r])
				if p == nil {
					return
				}
				tile[r] = (*[8]uint16)(p)
			}
			y := &w.r[d.slot]
			for l := range y {
				i, j := l>>2, l&3*2
				if trans {
					y[l] = uint32(tile[j][i]) | uint32(tile[j+1][i])<<16
				} else {
					y[l] = uint32(tile[i][j]) | uint32(tile[i][j+1])<<16
				}
			}
		}
	}
}

// lowerStmatrix is the reverse.
func lowerStmatrix(c *lowering) step {
	if !c.has("sync") || !c.has("aligned") || !c.has("m8n8") {
		c.failf("want stmatrix.sync.aligned.m8n8")
	}
	n, trans := c.matrices(), c.has("trans")
	if c.oneOf("shared", "shared::cta") == "" {
		c.failf("want .shared")
	}
	if !c.has("b16") {
		c.failf("want .b16")
	}
	c.args(2, 2)
	a := c.address(0, spShared, 16)
	a.write = true
	src := c.elements(c.arg(1), n, "b32", false)
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		w.effect = true
		rows := uint32(1)<<(8*n-1)<<1 - 1
		a.addresses(w, rows)
		for k, s := range src {
			var tile [8]*[8]uint16
			for r := range tile {
				p := w.pointer(&a, 8*k+r, w.addr[8*k+r])
				if p == nil {
					return
				}
				tile[r] = (*[8]uint16)(p)
			}
			x := w.in32(s.slot)
			for l := range x {
				i, j := l>>2, l&3*2
				if trans {
					tile[j][i], tile[j+1][i] = uint16(x[l]), uint16(x[l]>>16)
				} else {
					tile[i][j], tile[i][j+1] = uint16(x[l]), uint16(x[l]>>16)
				}
			}
		}
	}
}

// lowerMovmatrix transposes an 8x8 matrix of 16-bit elements across the warp.
func lowerMovmatrix(c *lowering) step {
	if !c.has("sync") || !c.has("aligned") || !c.has("m8n8") || !c.has("trans") || !c.has("b16") {
		c.failf("want movmatrix.sync.aligned.m8n8.trans.b16")
	}
	c.args(2, 2)
	d, a := c.dstT(0, "b32"), c.srcT(1, "b32")
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		var tile [8][8]uint16
		for l, v := range w.in32(a) {
			tile[l>>2][l&3*2], tile[l>>2][l&3*2+1] = uint16(v), uint16(v>>16)
		}
		y := &w.r[d]
		for l := range y {
			i, j := l>>2, l&3*2
			y[l] = uint32(tile[j][i]) | uint32(tile[j+1][i])<<16
		}
	}
}
