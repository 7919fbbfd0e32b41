package measure

import (
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// launchOf is a candidate's launch for a problem.
func launchOf(g launch.Geometry, p launch.Problem) (l *device.Launch, err error) {
	l = &device.Launch{Block: [3]uint32{uint32(g.Block), 1, 1}, Cluster: [3]uint32{uint32(max(g.Cluster, 1)), 1, 1},
		DynamicShared: uint32(g.DynamicShared), Dependent: g.Dependent}
	l.Grid, err = g.Blocks(p)
	return l, err
}
