package reference

// Kept gathers the bit patterns of one KV head's listed tokens, [listed, dim]: what a compacted cache holds for that head in its
// first len(list) tokens, in list order. Missing tokens are zeros.
func (c *Cache) Kept(request, kvHead int, list []int32) (keys, values []uint16) {
	keys, values = make([]uint16, len(list)*c.HeadDim), make([]uint16, len(list)*c.HeadDim)
	for i, j := range list {
		id := c.Block(request, int(j)/c.PageSize)
		if id < 0 {
			continue
		}
		at, to := int(j)%c.PageSize*c.HeadDim, i*c.HeadDim
		copy(keys[to:to+c.HeadDim], c.BlockKeys(id, kvHead)[at:])
		copy(values[to:to+c.HeadDim], c.BlockValues(id, kvHead)[at:])
	}
	return keys, values
}
