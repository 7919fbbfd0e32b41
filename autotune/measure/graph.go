package measure

import (
	"errors"
	"fmt"

	"github.com/kvloom/kvloom/runtime/device"
)

// timedGraph is a captured graph of launches with the events around its replays.
type timedGraph struct {
	rig        *Rig
	step       *Step
	graph      device.Graph
	begin, end device.Event
	launches   int
}

func (r *Rig) capture(s *Step, launches int) (*timedGraph, error) {
	if err := r.Stream.BeginCapture(); err != nil {
		return nil, err
	}
	var launchErr error
	for i := 0; i < launches && launchErr == nil; i++ {
		launchErr = s.launch(i)
	}
	graph, err := r.Stream.EndCapture()
	if err := errors.Join(launchErr, err); err != nil {
		return nil, fmt.Errorf("capture %d launches of %s: %w", launches, s.Work, err)
	}
	g := &timedGraph{rig: r, step: s, graph: graph, launches: launches}
	if g.begin, err = r.Dev.NewEvent(); err != nil {
		return nil, errors.Join(err, g.destroy())
	}
	if g.end, err = r.Dev.NewEvent(); err != nil {
		return nil, errors.Join(err, g.destroy())
	}
	return g, nil
}

// sample replays once and returns microseconds a launch.
func (g *timedGraph) sample() (float64, error) {
	s := g.rig.Stream
	if g.step.reset != nil {
		if err := g.step.reset(); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(s.Record(g.begin), g.graph.Launch(s), s.Record(g.end), g.end.Synchronize()); err != nil {
		return 0, err
	}
	ms, err := g.end.Since(g.begin)
	return ms * 1000 / float64(g.launches), err
}

func (g *timedGraph) destroy() error {
	var err error
	for _, e := range []device.Event{g.begin, g.end} {
		if e != nil {
			err = errors.Join(err, e.Destroy())
		}
	}
	return errors.Join(err, g.graph.Destroy())
}
