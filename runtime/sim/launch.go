package sim

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// Launch implements device.Function: the kernel runs before Launch returns, unless the stream is being captured. A fault is
// returned as a *Fault.
func (f *Function) Launch(s device.Stream, l *device.Launch, params unsafe.Pointer, size uintptr) error {
	st, ok := s.(*Stream)
	if !ok {
		return fmt.Errorf("sim: %s launched on a stream of another backend (%T)", f.kernel.name, s)
	}
	if err := f.check(l, size); err != nil {
		return fmt.Errorf("sim: launch of %s: %w", f.kernel.name, err)
	}
	geometry := *l
	held := make([]byte, max(f.kernel.paramBytes, 8))
	if size > 0 {
		copy(held, unsafe.Slice((*byte)(params), size))
	}
	return st.enqueue(func() error { return f.execute(geometry, held, st.id) })
}

func (f *Function) check(l *device.Launch, size uintptr) error {
	k, info := f.kernel, f.mod.dev.set.info
	threads := uint64(l.Block[0]) * uint64(l.Block[1]) * uint64(l.Block[2])
	cluster := uint64(l.Cluster[0]) * uint64(l.Cluster[1]) * uint64(l.Cluster[2])
	f.mu.Lock()
	limit, big := f.limit, f.bigClusters
	f.mu.Unlock()
	switch {
	case threads == 0 || threads > 1024 || l.Block[2] > 64:
		return fmt.Errorf("block %v: 1 to 1024 threads", l.Block)
	case k.fn.MaxThreads > 0 && threads > uint64(k.fn.MaxThreads):
		return fmt.Errorf("block %v has %d threads, the kernel was compiled for at most %d", l.Block, threads, k.fn.MaxThreads)
	case l.Grid[0] == 0 || l.Grid[1] == 0 || l.Grid[2] == 0 || l.Grid[0] > 1<<31-1 || l.Grid[1] > 65535 || l.Grid[2] > 65535:
		return fmt.Errorf("grid %v: 1 to 2^31-1, 65535 and 65535 blocks", l.Grid)
	case cluster == 0:
		return fmt.Errorf("cluster %v: {1,1,1} for none", l.Cluster)
	case cluster > 16 || cluster > 8 && !big:
		return fmt.Errorf("cluster %v: at most 8 blocks, 16 after SetNonPortableCluster", l.Cluster)
	case l.Grid[0]%l.Cluster[0] != 0 || l.Grid[1]%l.Cluster[1] != 0 || l.Grid[2]%l.Cluster[2] != 0:
		return fmt.Errorf("grid %v is not a multiple of cluster %v", l.Grid, l.Cluster)
	case int(l.DynamicShared) > limit:
		return fmt.Errorf("%d bytes of dynamic shared memory: at most %d unless SetMaxDynamicShared raises it", l.DynamicShared, limit)
	case k.staticShared+int(l.DynamicShared) > info.SharedPerBlock:
		return fmt.Errorf("%d bytes of shared memory: the device has %d", k.staticShared+int(l.DynamicShared), info.SharedPerBlock)
	case size != uintptr(k.paramBytes):
		return fmt.Errorf("%d bytes of parameters: the kernel has %d", size, k.paramBytes)
	}
	if c := k.fn.Cluster; c[0] > 0 && c != [3]int{int(l.Cluster[0]), int(l.Cluster[1]), int(l.Cluster[2])} {
		return fmt.Errorf("cluster %v: the kernel was compiled for %v", l.Cluster, c)
	}
	return nil
}

// execute runs the kernel.
func (f *Function) execute(g device.Launch, params []byte, stream uintptr) error {
	d, k := f.mod.dev, f.kernel
	l := &launch{dev: d, kernel: k, grid: g.Grid, block: g.Block, cluster: g.Cluster, dynamic: g.DynamicShared, params: params, set: &d.set}
	l.shared = uint32(k.dynamicAt) + g.DynamicShared
	blocks := uint64(g.Grid[0]) * uint64(g.Grid[1]) * uint64(g.Grid[2])
	perUnit := uint64(g.Cluster[0]) * uint64(g.Cluster[1]) * uint64(g.Cluster[2])
	l.units = blocks / perUnit
	occupancy, err := f.Occupancy(int(g.Block[0]*g.Block[1]*g.Block[2]), int(g.DynamicShared))
	if err != nil {
		return err
	}
	if g.Cooperative && blocks > uint64(occupancy*d.set.info.SMs) {
		return fmt.Errorf("sim: cooperative launch of %s: %d blocks, but only %d fit at once", k.name, blocks, occupancy*d.set.info.SMs)
	}
	l.limit = max(int64(occupancy*d.set.info.SMs)/int64(perUnit), 1)
	l.budget.Store(d.set.limit)
	l.instrument(d.chainOf(stream, g.Dependent))
	err = l.execute()
	return errors.Join(err, l.collect())
}
