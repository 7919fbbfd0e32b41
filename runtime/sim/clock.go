package sim

import "maps"

// vclock is a vector clock: for every warp, up to which of its steps the owner knows that they happened before. near holds the
// warps and copy engines of the owner's unit, far those of other units by their global number. far is never changed in place.
type vclock struct {
	near []uint32
	far  map[uint32]uint32
}

func (v *vclock) copyFrom(o *vclock) {
	v.near = append(v.near[:0], o.near...)
	v.far = o.far
}

// join makes v at least o; both belong to one unit.
func (v *vclock) join(o *vclock) {
	for len(v.near) < len(o.near) {
		v.near = append(v.near, 0)
	}
	for i, c := range o.near {
		v.near[i] = max(v.near[i], c)
	}
	v.joinFar(o.far)
}

func (v *vclock) joinFar(far map[uint32]uint32) {
	if len(far) == 0 {
		return
	}
	var merged map[uint32]uint32
	for g, c := range far {
		if v.far[g] >= c {
			continue
		}
		if merged == nil {
			if merged = maps.Clone(v.far); merged == nil {
				merged = make(map[uint32]uint32, len(far))
			}
		}
		merged[g] = c
	}
	if merged != nil {
		v.far = merged
	}
}

// at is the known step of a warp of the same unit.
func (v *vclock) at(i uint32) uint32 {
	if int(i) < len(v.near) {
		return v.near[i]
	}
	return 0
}

// syncVar is what atomics and strong stores on one address have published, by global warp number.
type syncVar struct {
	clocks  map[uint32]uint32
	proxy   map[uint32]uint32
	version uint64
}

// publish adds a unit's clock to the variable.
func (s *syncVar) publish(base uint32, v, proxy *vclock) {
	s.version++
	merge(&s.clocks, base, v)
	merge(&s.proxy, base, proxy)
}

func merge(m *map[uint32]uint32, base uint32, v *vclock) {
	if *m == nil {
		*m = make(map[uint32]uint32)
	}
	for i, c := range v.near {
		if g := base + uint32(i); c > (*m)[g] {
			(*m)[g] = c
		}
	}
	for g, c := range v.far {
		if c > (*m)[g] {
			(*m)[g] = c
		}
	}
}

// acquire joins published clocks into a unit's.
func (v *vclock) acquire(base, width uint32, clocks map[uint32]uint32) {
	var far map[uint32]uint32
	for g, c := range clocks {
		if i := g - base; i < width {
			for uint32(len(v.near)) <= i {
				v.near = append(v.near, 0)
			}
			v.near[i] = max(v.near[i], c)
			continue
		}
		if v.far[g] >= c {
			continue
		}
		if far == nil {
			far = make(map[uint32]uint32, len(clocks))
		}
		far[g] = c
	}
	v.joinFar(far)
}
