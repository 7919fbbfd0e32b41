package sim

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// The newest PTX version that the simulator knows, as its driver would.
const maxPTXMajor, maxPTXMinor = 9, 0

// Module is loaded PTX.
type Module struct {
	dev     *Device
	ast     *ptx.Module
	kernels map[string]*kernel
	globals map[string]*alloc
}

// Load implements device.Device. It takes PTX text; a cubin is an error, and so is an instruction that the simulator does not
// know.
func (d *Device) Load(image []byte) (device.Module, error) {
	if bytes.HasPrefix(image, []byte("\x7fELF")) {
		return nil, errors.New("sim: this is a cubin: the simulator executes PTX; load the module's PTX text instead")
	}
	ast, err := ptx.Parse(strings.TrimRight(string(image), "\x00"))
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	if ast.Major == 0 || ast.Target == "" {
		return nil, errors.New("sim: no PTX: .version and .target are missing")
	}
	if ast.Major > maxPTXMajor || ast.Major == maxPTXMajor && ast.Minor > maxPTXMinor {
		return nil, fmt.Errorf("sim: PTX version %d.%d is newer than %d.%d, the newest that the simulator knows: compile with NVRTC 13.0", ast.Major,
			ast.Minor, maxPTXMajor, maxPTXMinor)
	}
	m := &Module{dev: d, ast: ast, kernels: map[string]*kernel{}, globals: map[string]*alloc{}}
	if err := m.variables(); err != nil {
		return nil, errors.Join(err, m.Unload())
	}
	for _, f := range ast.Funcs {
		if !f.Entry || !f.HasBody {
			continue
		}
		k, err := m.lower(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("sim: %w", err), m.Unload())
		}
		m.kernels[f.Name] = k
	}
	return m, nil
}

// variables allocates and initialises module-scope .global and .const variables.
func (m *Module) variables() error {
	vars := append([]ptx.Var(nil), m.ast.Vars...)
	for _, f := range m.ast.Funcs {
		vars = append(vars, f.Vars...)
	}
	var placed []ptx.Var
	for _, v := range vars {
		if v.Space != "global" && v.Space != "const" || v.Extern {
			continue
		}
		a, err := m.dev.space.alloc(max(v.Size, 1), v.Name)
		if err != nil {
			return err
		}
		m.globals[v.Name] = a
		placed = append(placed, v)
	}
	for _, v := range placed {
		init := append([]byte(nil), v.Init...)
		if name, ok := link(init, v.Refs, m.address); !ok {
			return fmt.Errorf("sim: variable %s: no variable %s to take the address of", v.Name, name)
		}
		b := make([]byte, max(v.Size, 1))
		copy(b, init)
		if err := m.dev.Write(device.Ptr(m.globals[v.Name].base), b); err != nil {
			return err
		}
	}
	return nil
}

func (m *Module) address(name string) (uint64, bool) {
	a, ok := m.globals[name]
	if !ok {
		return 0, false
	}
	return a.base, true
}

// Function implements device.Module.
func (m *Module) Function(name string) (device.Function, error) {
	k, ok := m.kernels[name]
	if !ok {
		return nil, fmt.Errorf("sim: the module has no kernel %q", name)
	}
	return &Function{mod: m, kernel: k, limit: 48<<10 - k.staticShared}, nil
}

// Unload implements device.Module.
func (m *Module) Unload() error {
	var first error
	for _, a := range m.globals {
		if err := m.dev.space.free(a.base); err != nil && first == nil {
			first = err
		}
	}
	m.globals = map[string]*alloc{}
	return first
}

// Function is one kernel.
type Function struct {
	mod    *Module
	kernel *kernel

	mu          sync.Mutex
	limit       int // dynamic shared memory allowed
	bigClusters bool
}

// Name implements device.Function.
func (f *Function) Name() string { return f.kernel.name }

// Attributes implements device.Function. Registers is the most that are live at once in the PTX, at least 16: ptxas may use more or fewer.
func (f *Function) Attributes() (device.FuncAttributes, error) {
	k := f.kernel
	limit := 1024
	if k.fn.MaxThreads > 0 {
		limit = min(limit, k.fn.MaxThreads)
	}
	return device.FuncAttributes{Registers: k.pressure, LocalBytes: k.localBytes, SharedBytes: k.staticShared, MaxThreads: limit,
		BinaryVersion: f.mod.dev.set.info.Major*10 + f.mod.dev.set.info.Minor, PTXVersion: f.mod.ast.Major*10 + f.mod.ast.Minor}, nil
}

// SetMaxDynamicShared implements device.Function.
func (f *Function) SetMaxDynamicShared(bytes int) error {
	room := f.mod.dev.set.info.SharedPerBlock - f.kernel.staticShared
	if bytes < 0 || bytes > room {
		return fmt.Errorf("sim: %s: %d bytes of dynamic shared memory: the device has %d left beside the kernel's %d", f.kernel.name, bytes, room, f.kernel.staticShared)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = bytes
	return nil
}

// SetNonPortableCluster implements device.Function.
func (f *Function) SetNonPortableCluster() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bigClusters = true
	return nil
}

// Occupancy implements device.Function, by threads, shared memory and the register count that Attributes reports.
func (f *Function) Occupancy(blockThreads, dynamicShared int) (int, error) {
	info := f.mod.dev.set.info
	if blockThreads < 1 || blockThreads > 1024 || dynamicShared < 0 {
		return 0, fmt.Errorf("sim: %s: occupancy of blocks of %d threads with %d bytes", f.kernel.name, blockThreads, dynamicShared)
	}
	warps := (blockThreads + 31) / 32
	n := min(32, info.ThreadsPerSM/(warps*32))
	perBlock := f.kernel.staticShared + dynamicShared + 1024
	n = min(n, info.SharedPerSM/perBlock)
	// ptxas fits as many blocks as the kernel's launch bounds promise.
	registers := min(f.kernel.pressure, info.RegistersPerSM/(max(f.kernel.fn.MinBlocks, 1)*warps*32))
	return min(n, info.RegistersPerSM/(max(registers, 16)*warps*32)), nil
}
