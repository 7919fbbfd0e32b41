package nvrtc

import (
	"context"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/kvloom/kvloom/gen/render"
)

// Options are what a caller may add to a compilation. The zero value is the usual one.
type Options struct {
	CubinArch string   // for a virtual Source.Arch (compute_80): also make a cubin for this real one, to learn its resources
	Flags     []string // further NVRTC options, after ours
}

// flags are the options of every compilation. No fast math: kernels are right first and ask for approximations by intrinsic.
// -lineinfo gives PTX the .loc lines by which the simulator and the sanitizer name source lines; it changes no code.
// --no-cache: with a driver, NVRTC 13.0 takes the same source a second time from the driver's cache, whose log is empty.
func flags() []string {
	return []string{"-std=c++17", "-default-device", "-lineinfo", "--no-cache", "--ptxas-options=-v"}
}

// Compiler compiles sources with one toolchain. Its methods are safe for many goroutines, and NVRTC 13.0
// compiles in parallel inside one process: two sources on two processors took 0.6 times what they took one after the other.
type Compiler struct {
	lib       *library
	toolchain *Toolchain
	version   string
	cache     *Cache
	headers   headerHashes
}

// Open discovers a toolchain and returns a compiler with the user's disk cache.
func Open() (*Compiler, error) {
	t, err := Discover()
	if err != nil {
		return nil, err
	}
	return New(t, DefaultCache())
}

// New loads the toolchain's NVRTC. A nil cache compiles everything each time.
func New(t *Toolchain, cache *Cache) (*Compiler, error) {
	lib, err := load(t.Library, t.Builtins)
	if err != nil {
		return nil, err
	}
	var major, minor int32
	if err := lib.check(lib.version(&major, &minor), "ask NVRTC for its version"); err != nil {
		return nil, err
	}
	build, err := buildID(t.Library)
	if err != nil {
		return nil, err
	}
	return &Compiler{lib: lib, toolchain: t, cache: cache, version: fmt.Sprintf("NVRTC %d.%d build %.12s", major, minor, build),
		headers: headerHashes{dir: t.Include, sums: map[string]string{}}}, nil
}

// Version names the compiler and its build: "NVRTC 13.0 build 65be0db342ad". NVRTC itself tells major and minor only, and 13.0.48
// and 13.0.88 make different code; so the build is the library's ELF build id.
func (c *Compiler) Version() string { return c.version }

// Toolchain is what the compiler was made with.
func (c *Compiler) Toolchain() *Toolchain { return c.toolchain }

// Compile makes a module of the source, or takes it from the cache. The error is a *CompileError when NVRTC refused the source,
// and ctx's when it was cancelled.
func (c *Compiler) Compile(ctx context.Context, src render.Source, o Options) (*Module, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	key, err := c.key(src, o)
	if err != nil {
		return nil, err
	}
	m, warnings := c.cache.load(key, src.Arch)
	if m == nil {
		if m, err = c.compile(ctx, src, o); err != nil {
			return nil, c.saved(err, src, key)
		}
		m.Key = key
		if m.Resources.Known || len(m.Cubin) == 0 { // what is unknown is asked again
			warnings = append(warnings, c.cache.store(m)...)
		}
	}
	m.Warnings = append(m.Warnings, warnings...)
	return m, nil
}

// compile runs NVRTC once, or twice for a virtual arch with a cubin.
func (c *Compiler) compile(ctx context.Context, src render.Source, o Options) (*Module, error) {
	virtual := strings.HasPrefix(src.Arch, "compute_")
	m := &Module{Arch: src.Arch, CubinArch: src.Arch, Compiler: c.version}
	if virtual {
		m.CubinArch = o.CubinArch
	}
	out, err := c.run(ctx, src, src.Arch, o)
	if err != nil {
		return nil, err
	}
	m.PTX, m.Cubin, m.Log = out.ptx, out.cubin, out.log
	if c.lib.signals != nil {
		m.Warnings = append(m.Warnings, fmt.Sprintf("NVRTC handles signals itself: Ctrl-C while it compiles ends the process (%v)", c.lib.signals))
	}
	if virtual {
		if o.CubinArch == "" {
			return m, nil
		}
		if out, err = c.run(ctx, src, o.CubinArch, o); err != nil {
			return nil, err
		}
		m.Cubin, m.Log = out.cubin, m.Log+out.log
	}
	if len(m.PTX) == 0 || len(m.Cubin) == 0 {
		return nil, &CompileError{Source: src.Name, Arch: src.Arch, Reason: "NVRTC made no code", Log: m.Log}
	}
	if m.Resources, err = parseResources(out.log, src.Entry); err != nil {
		// The code is there and right. What it uses stays unknown, and whoever must know asks Resources.Known.
		m.Warnings = append(m.Warnings, fmt.Sprintf("%s for %s: %v; registers and spills are not known", src.Name, src.Arch, err))
	}
	return m, nil
}

// output is what one run of NVRTC gave.
type output struct {
	ptx, cubin []byte
	log        string
}

// run compiles for one architecture.
func (c *Compiler) run(ctx context.Context, src render.Source, arch string, o Options) (out output, err error) {
	var pin pinned
	defer pin.Unpin()
	names := src.HeaderNames()
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = src.Headers[n]
	}
	options := slices.Concat(flags(), []string{"--gpu-architecture=" + arch, "--include-path=" + c.toolchain.Include}, o.Flags)

	var prog uintptr
	code := c.lib.createProgram(&prog, pin.cString(src.Text), pin.cString(src.Name), int32(len(names)), pin.cStrings(texts), pin.cStrings(names))
	if err := c.lib.check(code, "create an NVRTC program for "+src.Name); err != nil {
		return out, err
	}
	defer c.lib.destroyProgram(&prog)
	defer c.cancelWith(ctx, prog)()

	code = c.lib.compileProgram(prog, int32(len(options)), pin.cStrings(options))
	log, logErr := c.lib.bytes(prog, "read the log of "+src.Name, c.lib.logSize, c.lib.log)
	out.log = strings.TrimRight(string(log), "\x00")
	if err := ctx.Err(); err != nil && code != 0 {
		return out, err
	}
	if code != 0 {
		return out, &CompileError{Source: src.Name, Arch: arch, Reason: c.lib.errorString(code), Log: out.log}
	}
	ptx, ptxErr := c.lib.bytes(prog, "read the PTX of "+src.Name, c.lib.ptxSize, c.lib.ptx)
	out.ptx = []byte(strings.TrimRight(string(ptx), "\x00"))
	var cubinErr error
	if !strings.HasPrefix(arch, "compute_") {
		out.cubin, cubinErr = c.lib.bytes(prog, "read the cubin of "+src.Name, c.lib.cubinSize, c.lib.cubin)
	}
	return out, errors.Join(logErr, ptxErr, cubinErr)
}

// pinned holds C strings in place while NVRTC reads them.
type pinned struct{ runtime.Pinner }

func (p *pinned) cString(s string) *byte {
	b := append([]byte(s), 0)
	p.Pin(&b[0])
	return &b[0]
}

// cStrings returns a char** of len(list), or nil for none.
func (p *pinned) cStrings(list []string) unsafe.Pointer {
	if len(list) == 0 {
		return nil
	}
	ptrs := make([]*byte, len(list))
	for i, s := range list {
		ptrs[i] = p.cString(s)
	}
	p.Pin(&ptrs[0])
	return unsafe.Pointer(&ptrs[0])
}

// buildIDs remembers buildID by file: a library is loaded once a process anyway.
var buildIDs sync.Map

// buildID reads the GNU build id of a library, hex.
func buildID(file string) (string, error) {
	if id, ok := buildIDs.Load(file); ok {
		return id.(string), nil
	}
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		return "", fmt.Errorf("read the build id of NVRTC: %w", err)
	}
	f, err := elf.Open(real)
	if err != nil {
		return "", fmt.Errorf("read the build id of NVRTC %s: %w", file, err)
	}
	defer f.Close()
	s := f.Section(".note.gnu.build-id")
	if s == nil {
		return "", fmt.Errorf("NVRTC %s has no build id, so cached modules cannot be told apart; use NVIDIA's own wheel (`make toolchain`)", file)
	}
	note, err := s.Data()
	const header = 16 // name size, description size, type, "GNU\0"
	if err != nil || len(note) <= header {
		return "", fmt.Errorf("NVRTC %s has an unreadable build id", file)
	}
	id := hex.EncodeToString(note[header:])
	buildIDs.Store(file, id)
	return id, nil
}
