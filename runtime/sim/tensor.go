package sim

func (c *lowering) bulkTensor() step {
	c.failf("tensor copies are not known")
	return nil
}

func (c *lowering) tensorPrefetch() step {
	c.failf("tensor prefetches are not known")
	return nil
}
