package nvrtc

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/gen/render"
)

// cached returns a compiler over its own cache folder and toolkit headers, skipping as nvrtctest does.
func cached(t *testing.T, dir string) *Compiler {
	t.Helper()
	tc, err := Discover()
	if err != nil {
		if os.Getenv("KVLOOM_REQUIRE_NVRTC") == "1" {
			t.Fatal(err)
		}
		t.Skipf("no NVRTC: %v", err)
	}
	c, err := New(tc, NewCache(dir))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func source() render.Source {
	return render.Source{Name: "one.cu", Entry: "one", Arch: "sm_90a",
		Text:    "#include \"kvloom/one.cuh\"\nextern \"C\" __global__ void one(float* x) { *x = ONE; }\n",
		Headers: map[string]string{"kvloom/one.cuh": "#pragma once\n#define ONE 1.0f\n"}}
}

func compile(t *testing.T, c *Compiler, src render.Source) *Module {
	t.Helper()
	m, err := c.Compile(t.Context(), src, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestCacheHit(t *testing.T) {
	dir := t.TempDir()
	first := compile(t, cached(t, dir), source())
	second := compile(t, cached(t, dir), source())
	if first.Cached || !second.Cached {
		t.Errorf("cached: first %v, second %v; want false, true", first.Cached, second.Cached)
	}
	second.Cached = false
	if d := cmp.Diff(first, second); d != "" {
		t.Errorf("the cache changed the module (-compiled +cached):\n%s", d)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "tmp")); len(left) != 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

// C4: what decides is content. A header changed in place with its old time must rebuild; a copy with a new time must not.
func TestKeyIsContent(t *testing.T) {
	c := cached(t, t.TempDir())
	base, err := c.key(source(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, reason string
		change       func(*render.Source, *Options, *Compiler)
		same         bool
	}{
		{"nothing", "a key is repeatable", func(*render.Source, *Options, *Compiler) {}, true},
		{"text", "the source decides", func(s *render.Source, _ *Options, _ *Compiler) { s.Text += "\n" }, false},
		{"header", "the closure decides, whatever its time", func(s *render.Source, _ *Options, _ *Compiler) {
			s.Headers = map[string]string{"kvloom/one.cuh": "#pragma once\n#define ONE 2.0f\n"}
		}, false},
		{"header name", "text moved between headers is another program", func(s *render.Source, _ *Options, _ *Compiler) {
			s.Headers = map[string]string{"kvloom/two.cuh": s.Headers["kvloom/one.cuh"]}
		}, false},
		{"arch", "code of another GPU", func(s *render.Source, _ *Options, _ *Compiler) { s.Arch = "sm_80" }, false},
		{"flag", "flags decide", func(_ *render.Source, o *Options, _ *Compiler) { o.Flags = []string{"-DX"} }, false},
		{"cubin arch", "another cubin beside the same PTX", func(_ *render.Source, o *Options, _ *Compiler) { o.CubinArch = "sm_80" }, false},
		{"compiler", "another NVRTC makes other code", func(_ *render.Source, _ *Options, c *Compiler) { c.version = "NVRTC 13.0 build 0" }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, o := source(), Options{}
			other := &Compiler{version: c.version, headers: headerHashes{dir: c.headers.dir, sums: map[string]string{}}}
			tt.change(&s, &o, other)
			got, err := other.key(s, o)
			if err != nil {
				t.Fatal(err)
			}
			if (got == base) != tt.same {
				t.Errorf("same key: %v, want %v: %s", got == base, tt.same, tt.reason)
			}
		})
	}
}

func TestKeyCoversToolkitHeaders(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, when time.Time) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o644), os.Chtimes(file, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	key := func() string {
		t.Helper()
		c := &Compiler{headers: headerHashes{dir: dir, sums: map[string]string{}}}
		s := source()
		s.Text = "#include <outer.h>\n" + s.Text
		k, err := c.key(s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	then := time.Unix(1e9, 0)
	write("outer.h", "#include \"inner.h\"\n", then)
	write("inner.h", "#define A 1\n", then)
	before := key()
	write("inner.h", "#define A 2\n", then)
	if key() == before {
		t.Error("a toolkit header changed behind another, its time kept, and the key did not")
	}
	write("inner.h", "#define A 1\n", time.Now())
	if key() != before {
		t.Error("the same content with a new time has another key: needless rebuild")
	}
}

// An entry that is not whole, or not what its key says, is compiled again and replaced.
func TestCacheDistrustsEntries(t *testing.T) {
	sm80 := source()
	sm80.Arch = "sm_80"
	tests := []struct {
		name, reason string
		spoil        func(t *testing.T, c *Compiler, m *Module, entry []byte) []byte
	}{
		{"truncated", "killed writer on a file system without ordering", func(_ *testing.T, _ *Compiler, _ *Module, b []byte) []byte { return b[:len(b)/2] }},
		{"empty", "disk was full", func(*testing.T, *Compiler, *Module, []byte) []byte { return nil }},
		{"bit flipped", "bad disk", func(_ *testing.T, _ *Compiler, _ *Module, b []byte) []byte {
			b = bytes.Clone(b)
			b[len(b)/2] ^= 1
			return b
		}},
		{"other key", "an entry copied to another name", func(t *testing.T, _ *Compiler, m *Module, _ []byte) []byte {
			other := *m
			other.Key = strings.Repeat("0", 64)
			return mustEncode(t, &other)
		}},
		{"other arch", "C5: a cubin of another architecture under the same key", func(t *testing.T, c *Compiler, m *Module, _ []byte) []byte {
			wrong, err := c.compile(t.Context(), sm80, Options{})
			if err != nil {
				t.Fatal(err)
			}
			wrong.Key, wrong.Arch, wrong.CubinArch = m.Key, m.Arch, m.CubinArch
			return mustEncode(t, wrong)
		}},
		{"no cubin", "an entry that lost its code", func(t *testing.T, _ *Compiler, m *Module, _ []byte) []byte {
			other := *m
			other.Cubin = nil
			return mustEncode(t, &other)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := cached(t, t.TempDir())
			want := compile(t, c, source())
			file := c.cache.file(want.Key)
			entry, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, tt.spoil(t, c, want, entry), 0o644); err != nil {
				t.Fatal(err)
			}
			got := compile(t, c, source())
			if got.Cached || len(got.Warnings) != 1 {
				t.Errorf("cached %v, warnings %q: want a rebuild with one warning (%s)", got.Cached, got.Warnings, tt.reason)
			}
			if !bytes.Equal(got.Cubin, want.Cubin) {
				t.Error("the rebuilt cubin differs")
			}
			if again := compile(t, c, source()); !again.Cached || len(again.Warnings) != 0 {
				t.Errorf("the entry was not replaced: cached %v, warnings %q", again.Cached, again.Warnings)
			}
		})
	}
}

// A cache that travelled without the PTX of portable kernels made every one of them a launch error: the driver loads nothing else of them.
func TestCheckPTX(t *testing.T) {
	whole := []byte("//\n.version 9.0\n.target compute_80\n")
	tests := []struct {
		name, arch string
		ptx        []byte
		usable     bool
	}{
		{"portable", "compute_80", whole, true},
		{"portable, left behind", "compute_80", []byte("//"), false},
		{"portable, none", "compute_80", nil, false},
		{"its cubin is loaded", "sm_90a", []byte("//"), true},
	}
	for _, tt := range tests {
		if err := checkPTX(&Module{Arch: tt.arch, PTX: tt.ptx}); (err == nil) != tt.usable {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func mustEncode(t *testing.T, m *Module) []byte {
	t.Helper()
	b, err := encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A folder that cannot be written costs the cache, never the compilation, and is named once.
func TestCacheUnwritable(t *testing.T) {
	tests := []struct {
		name string
		dir  func(t *testing.T) string
	}{
		{"file in the way", func(t *testing.T) string {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			return file
		}},
		{"read-only", func(t *testing.T) string {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o555); err != nil {
				t.Fatal(err)
			}
			if f, err := os.CreateTemp(dir, "x"); err == nil {
				f.Close()
				t.Skip("this user may write read-only folders (root)")
			}
			return dir
		}},
		{"disk full", func(t *testing.T) string {
			if _, err := os.Stat("/dev/full"); err != nil {
				t.Skip("no /dev/full")
			}
			return t.TempDir()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := cached(t, tt.dir(t))
			if tt.name == "disk full" {
				c.cache.writeTo = func(*os.File, []byte) (int, error) {
					full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
					if err != nil {
						return 0, err
					}
					defer full.Close()
					return full.Write([]byte("x")) // ENOSPC, as the kernel says it
				}
			}
			first, second := compile(t, c, source()), compile(t, c, source())
			if len(first.Warnings) != 1 || !strings.Contains(first.Warnings[0], "KVLOOM_CACHE") {
				t.Errorf("warnings %q: want one that names the remedy", first.Warnings)
			}
			if len(second.Warnings) != 0 || second.Cached {
				t.Errorf("second: cached %v, warnings %q: want a silent compilation", second.Cached, second.Warnings)
			}
			if tt.name == "disk full" {
				if !strings.Contains(first.Warnings[0], syscall.ENOSPC.Error()) {
					t.Errorf("warning %q does not say that the disk is full", first.Warnings[0])
				}
				filepath.WalkDir(c.cache.dir, func(path string, d fs.DirEntry, err error) error {
					if err == nil && !d.IsDir() {
						t.Errorf("half-written file left: %s", path)
					}
					return err
				})
			}
		})
	}
}

// Two compilers over one folder behave as two processes do: they share nothing but files.
func TestCacheShared(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 2 {
		c := cached(t, dir)
		for range 2 {
			wg.Go(func() {
				for range 5 {
					m, err := c.Compile(context.Background(), source(), Options{})
					if err != nil || len(m.Warnings) != 0 {
						t.Errorf("error %v, warnings %v", err, m)
						return
					}
					os.Remove(c.cache.file(m.Key)) // so that the others write again while we read
				}
			})
		}
	}
	wg.Wait()
}

func TestParseResources(t *testing.T) {
	const log = `ptxas info    : 0 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 64 bytes smem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     160 bytes stack frame, 12 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 160 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 3.689 ms
ptxas info    : Function properties for helper
ptxas         .     16 bytes stack frame, 1 bytes spill stores, 1 bytes spill loads
`
	got, err := parseResources(log, "k")
	if err != nil {
		t.Fatal(err)
	}
	want := Resources{Known: true, Registers: 40, StackBytes: 160, SpillStores: 12, SpillLoads: 24, StaticShared: 1024}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := parseResources(log, "absent"); err == nil {
		t.Error("a kernel the log does not name has resources")
	}
}

// The compiler's own spill report: a kernel held to few registers must spill, and the log must say so.
func TestSpillsAreReal(t *testing.T) {
	c := cached(t, t.TempDir())
	src := render.Source{Name: "spill.cu", Entry: "spill", Arch: "sm_90a", Text: `extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* x) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = a[63 - i] * a[(i * 7) % 64];
}
`}
	r := compile(t, c, src).Resources
	if r.SpillStores == 0 || r.SpillLoads == 0 || r.StackBytes == 0 || r.Registers > 32 {
		t.Errorf("%v: want spills, a stack and at most 32 registers", r)
	}
}

func TestCompileErrorSavesSource(t *testing.T) {
	c := cached(t, t.TempDir())
	bad := source()
	bad.Text += "syntax error here\n"
	_, err := c.Compile(t.Context(), bad, Options{})
	var ce *CompileError
	if !errors.As(err, &ce) {
		t.Fatalf("error %v: want a CompileError", err)
	}
	if !strings.Contains(ce.Log, "one.cu(3)") {
		t.Errorf("log %q does not name file and line", ce.Log)
	}
	for name, want := range map[string]string{bad.Name: bad.Text, "kvloom/one.cuh": bad.Headers["kvloom/one.cuh"]} {
		if got, err := os.ReadFile(filepath.Join(ce.Saved, name)); err != nil || string(got) != want {
			t.Errorf("saved %s: %v, %q", name, err, got)
		}
	}
}

func TestCompileCancelled(t *testing.T) {
	c := cached(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Compile(ctx, source(), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v: want context.Canceled", err)
	}
	// A context that ends after NVRTC started is asked by NVRTC's callback.
	if _, err := c.compile(ctx, source(), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v from a running compilation: want context.Canceled", err)
	}
}
