package nvrtc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Attempt is one place that Discover looked at.
type Attempt struct {
	Origin string `json:"origin"` // "KVLOOM_NVRTC", "project toolchain", ...
	Path   string `json:"path"`
	Result string `json:"result"` // "found", or why not
}

// Toolchain is an NVRTC with its headers. Tried holds every place looked at, the one found last, for doctor.
type Toolchain struct {
	Origin   string    `json:"origin"`
	Library  string    `json:"library"`  // libnvrtc.so.N
	Builtins string    `json:"builtins"` // libnvrtc-builtins.so.N.M; empty when left to the loader's path
	Include  string    `json:"include"`  // the folder that holds cuda_fp16.h
	Tried    []Attempt `json:"tried"`
}

// NotFound says that no usable toolchain exists here, and what was tried.
type NotFound struct {
	What  string // "NVRTC (libnvrtc.so)" or "CUDA headers (cuda_fp16.h)"
	Tried []Attempt
}

func (e *NotFound) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s not found; run `make toolchain`, or set KVLOOM_NVRTC to libnvrtc.so or to a folder with lib and include. Tried:", e.What)
	for _, a := range e.Tried {
		fmt.Fprintf(&b, "\n  %s: %s: %s", a.Origin, a.Path, a.Result)
	}
	return b.String()
}

// place is a folder to look at: libraries in one of libs, headers in one of includes.
type place struct {
	origin, path   string
	libs, includes []string
	only           bool // a failure here is final: the user named it
}

// Discover finds NVRTC and its headers: KVLOOM_NVRTC, the project's toolchain folder (upward from the working directory, then
// from the executable), Python's site-packages, CUDA_HOME, /usr/local/cuda*, the loader's path. It loads nothing.
func Discover() (*Toolchain, error) {
	t := &Toolchain{}
	for p := range places() {
		lib, builtins, why := p.library()
		if why != "" {
			t.Tried = append(t.Tried, Attempt{p.origin, p.path, why})
			if p.only {
				break
			}
			continue
		}
		t.Tried = append(t.Tried, Attempt{p.origin, p.path, "found"})
		t.Origin, t.Library, t.Builtins = p.origin, lib, builtins
		break
	}
	if t.Library == "" {
		return t, &NotFound{"NVRTC (libnvrtc.so)", t.Tried}
	}
	for p := range places() {
		if t.Include = p.header(); t.Include != "" {
			return t, nil
		}
	}
	return t, &NotFound{"CUDA headers (cuda_fp16.h, from the wheel nvidia-cuda-runtime)", t.Tried}
}

// places yields folders in the order of preference. Python is started only when nothing before it was good.
func places() func(yield func(place) bool) {
	return func(yield func(place) bool) {
		if v := os.Getenv("KVLOOM_NVRTC"); v != "" && !yield(named(v)) {
			return
		}
		for _, dir := range projectFolders() {
			if !yield(wheel("project toolchain", dir)) {
				return
			}
		}
		for _, dir := range sitePackages() {
			if !yield(wheel("Python site-packages", dir)) {
				return
			}
		}
		var toolkits []place
		for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
			if v := os.Getenv(name); v != "" {
				toolkits = append(toolkits, toolkit(name, v))
			}
		}
		local, _ := filepath.Glob("/usr/local/cuda*") // the pattern is constant: no error
		for _, dir := range local {
			toolkits = append(toolkits, toolkit("/usr/local", dir))
		}
		for _, p := range append(toolkits, place{origin: "loader path", path: strings.Join(loaderPath(), ":"), libs: loaderPath(), includes: []string{"/usr/include"}}) {
			if !yield(p) {
				return
			}
		}
	}
}

// named is the place KVLOOM_NVRTC gives: the library itself, its folder, or the folder above with lib and include.
func named(v string) place {
	p := place{origin: "KVLOOM_NVRTC", path: v, only: true}
	dir := v
	if fi, err := os.Stat(v); err == nil && !fi.IsDir() {
		dir = filepath.Dir(v)
	}
	p.libs = []string{dir, filepath.Join(dir, "lib"), filepath.Join(dir, "lib64"), filepath.Join(dir, "nvidia/cu13/lib")}
	p.includes = []string{filepath.Join(dir, "include"), filepath.Join(dir, "../include"), filepath.Join(dir, "nvidia/cu13/include"), dir}
	return p
}

// wheel is a folder that NVIDIA's wheels were unpacked into: cu13 of CUDA 13, and the one folder a package of CUDA 12.
func wheel(origin, dir string) place {
	return place{origin: origin, path: dir,
		libs:     []string{filepath.Join(dir, "nvidia/cu13/lib"), filepath.Join(dir, "nvidia/cuda_nvrtc/lib")},
		includes: []string{filepath.Join(dir, "nvidia/cu13/include"), filepath.Join(dir, "nvidia/cuda_runtime/include")}}
}

func toolkit(origin, dir string) place {
	return place{origin: origin, path: dir,
		libs:     []string{filepath.Join(dir, "lib64"), filepath.Join(dir, "lib"), filepath.Join(dir, "targets/x86_64-linux/lib")},
		includes: []string{filepath.Join(dir, "include"), filepath.Join(dir, "targets/x86_64-linux/include")}}
}

// library looks for libnvrtc with its builtins, or says why there is none.
func (p place) library() (lib, builtins, why string) {
	for _, dir := range p.libs {
		lib = newest(filepath.Join(dir, "libnvrtc.so*"))
		if lib == "" {
			continue
		}
		builtins = newest(filepath.Join(dir, "libnvrtc-builtins.so*"))
		if builtins == "" {
			return "", "", "libnvrtc without libnvrtc-builtins beside it in " + dir
		}
		return lib, builtins, ""
	}
	return "", "", "no libnvrtc.so there"
}

// header returns the folder that holds cuda_fp16.h, or "".
func (p place) header() string {
	for _, dir := range p.includes {
		if _, err := os.Stat(filepath.Join(dir, "cuda_fp16.h")); err == nil {
			return filepath.Clean(dir)
		}
	}
	return ""
}

// newest returns the highest version among the matches (libx.so.13 beats libx.so.12 and plain libx.so), or "".
func newest(pattern string) string {
	matches, _ := filepath.Glob(pattern) // only a malformed folder name fails: nothing found
	slices.SortFunc(matches, func(a, b string) int { return slices.Compare(soVersion(a), soVersion(b)) })
	if len(matches) == 0 {
		return ""
	}
	return matches[len(matches)-1]
}

// soVersion reads 13, 0 from libnvrtc.so.13.0; nil where a part is no number.
func soVersion(file string) []int {
	_, v, _ := strings.Cut(filepath.Base(file), ".so.")
	var parts []int
	for _, s := range strings.Split(v, ".") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil
		}
		parts = append(parts, n)
	}
	return parts
}

// projectFolders are the .kvloom/toolchain folders above the working directory and above the executable.
func projectFolders() []string {
	var found []string
	up := func(dir string) {
		for {
			t := filepath.Join(dir, ".kvloom", "toolchain")
			if fi, err := os.Stat(t); err == nil && fi.IsDir() && !slices.Contains(found, t) {
				found = append(found, t)
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				return
			}
			dir = parent
		}
	}
	if wd, err := os.Getwd(); err == nil {
		up(wd)
	}
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		up(filepath.Dir(exe))
	}
	return found
}

// sitePackages asks python3 for its path; none where there is no python3.
func sitePackages() []string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "python3", "-c", `import sys; print("\n".join(sys.path))`).Output()
	if err != nil {
		return nil
	}
	var dirs []string
	for _, dir := range strings.Split(string(out), "\n") {
		if fi, err := os.Stat(filepath.Join(dir, "nvidia")); dir != "" && err == nil && fi.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// loaderPath is where the dynamic loader would look; its cache is not read.
func loaderPath() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return append(dirs, "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
}
