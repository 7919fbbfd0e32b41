package verify

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// Kernel is a loaded candidate.
type Kernel struct {
	Candidate plan.Candidate
	Function  device.Function
	env       *Env
}

// Kernel compiles and loads a candidate, and raises the limits that its geometry needs.
func (e *Env) Kernel(c plan.Candidate) (*Kernel, error) {
	f, err := e.Compile(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.ID(), err)
	}
	if err := device.Prepare(f, c.Geometry.DynamicShared, c.Geometry.Cluster); err != nil {
		return nil, fmt.Errorf("%s: %w", c.ID(), err)
	}
	return &Kernel{Candidate: c, Function: f, env: e}, nil
}

// Geometry evaluates the candidate's geometry for a problem.
func (k *Kernel) Geometry(p launch.Problem) (device.Launch, error) {
	l, err := k.Candidate.Geometry.Launch(p)
	if err != nil {
		return l, fmt.Errorf("%s: %w", k.Candidate.ID(), err)
	}
	return l, nil
}

// Workspace is the family's shared workspace, large enough for the problem.
func (k *Kernel) Workspace(p launch.Problem) (*Buffer, error) {
	size := k.Candidate.Geometry.WorkspaceBytes(p)
	if k.Candidate.Geometry.First == nil {
		return k.env.Workspace(string(k.Candidate.Family), size)
	}
	// What one launch leaves for the other stays behind, where another problem has its counters: zeroed, as a caller would.
	b, err := k.env.Workspace(string(k.Candidate.Family)+", two launches", size)
	if err != nil {
		return nil, err
	}
	return b, b.Fill(0)
}

// CheckCounters reports the first byte of the workspace that is not as a launch must leave it.
func (k *Kernel) CheckCounters(p launch.Problem, workspace *Buffer) error {
	offset, size := k.Candidate.Geometry.Counters(p)
	return workspace.CheckZeroAt(offset, min(size, checkedWorkspace))
}

// Enqueue launches the kernel on a stream with one by-value argument struct.
func Enqueue[T any](k *Kernel, s device.Stream, p launch.Problem, args *T) error {
	l, err := k.Geometry(p)
	if err != nil {
		return err
	}
	if err := k.Function.Launch(s, &l, unsafe.Pointer(args), unsafe.Sizeof(*args)); err != nil {
		return fmt.Errorf("launch %s: %w", k.Candidate.ID(), err)
	}
	return nil
}

// RunOnce launches once and waits for the result.
func RunOnce[T any](k *Kernel, p launch.Problem, args *T) error {
	s, err := k.env.Dev.NewStream()
	if err != nil {
		return err
	}
	err = Enqueue(k, s, p, args)
	if err == nil {
		err = s.Synchronize()
	}
	return errors.Join(err, s.Destroy())
}

// Replay is a captured graph.
type Replay struct {
	stream device.Stream
	graph  device.Graph
}

// Capture records what enqueue puts on the stream.
func (e *Env) Capture(enqueue func(device.Stream) error) (*Replay, error) {
	s, err := e.Dev.NewStream()
	if err != nil {
		return nil, err
	}
	if err := s.BeginCapture(); err != nil {
		return nil, errors.Join(fmt.Errorf("begin capture: %w", err), s.Destroy())
	}
	enqueueErr := enqueue(s)
	g, err := s.EndCapture()
	if err = errors.Join(enqueueErr, err); err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %w", err), s.Destroy())
	}
	return &Replay{s, g}, nil
}

// EachLaunch captures what enqueue puts on a stream and hands the graph to once for every launch of a case, until one fails.
func (e *Env) EachLaunch(c Case, enqueue func(device.Stream) error, once func(graph *Replay, at int) error) error {
	graph, err := e.Capture(enqueue)
	if err != nil {
		return err
	}
	for at := range c.Launches() {
		if err = once(graph, at); err != nil {
			err = fmt.Errorf("launch %d: %w", at, err)
			break
		}
	}
	return errors.Join(err, graph.Close())
}

// Run replays the graph and waits.
func (r *Replay) Run() error {
	if err := r.graph.Launch(r.stream); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return r.stream.Synchronize()
}

// Close frees the graph and its stream.
func (r *Replay) Close() error { return errors.Join(r.graph.Destroy(), r.stream.Destroy()) }
