package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/version"
	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvml"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

// DoctorCmd says what this machine has of what kvloom uses.
type DoctorCmd struct{}

// finding is one line of doctor.
type finding struct {
	What   string `json:"what"`
	Found  bool   `json:"found"`
	Needed string `json:"needed"` // what for: generation and compilation work without a GPU
	Detail string `json:"detail"` // what was found, or why not
	Remedy string `json:"remedy,omitempty"`

	Tried []nvrtc.Attempt `json:"tried,omitempty"` // the places looked at
}

// needs of findings. Missing what compiling needs is doctor's only failure: a laptop without a GPU is a healthy machine.
const (
	toCompile = "to compile"
	toRun     = "to run and tune"
	toMeasure = "to watch clocks"
	optional  = "optional, bench's peers"
	toCache   = "to keep compiled kernels"
)

// Run looks, prints and fails where kernels cannot be compiled.
func (*DoctorCmd) Run(ctx *Context) error {
	findings := compilerFindings(ctx)
	findings = append(findings, cacheFinding())
	findings = append(findings, driverFindings()...)
	findings = append(append(findings, nvmlFinding()), peerFindings(ctx)...)
	if err := printFindings(ctx, findings); err != nil {
		return err
	}
	for _, f := range findings {
		if !f.Found && f.Needed == toCompile {
			return fmt.Errorf("%s is missing: kernels cannot be compiled here; %s", f.What, f.Remedy)
		}
	}
	return nil
}

func printFindings(ctx *Context, findings []finding) error {
	if ctx.JSON {
		return ctx.PrintJSON(struct {
			Version  string    `json:"version"`
			Commit   string    `json:"commit"`
			Findings []finding `json:"findings"`
		}{version.Version, version.Commit(), findings})
	}
	fmt.Fprintln(ctx.Stdout, version.String())
	for _, f := range findings {
		state := "found  "
		if !f.Found {
			state = "missing"
		}
		fmt.Fprintf(ctx.Stdout, "%s  %-12s  %s\n", state, f.What, f.Detail)
		if !f.Found {
			fmt.Fprintf(ctx.Stdout, "%23s%s: %s\n", "", f.Needed, f.Remedy)
		}
		for _, a := range f.Tried {
			fmt.Fprintf(ctx.Stdout, "%23s%s: %s: %s\n", "", a.Origin, a.Path, a.Result)
		}
	}
	return nil
}

const installToolchain = "run `make toolchain`, or set KVLOOM_NVRTC to a folder with lib and include"

// compilerFindings finds NVRTC and the headers, and compiles a kernel: a library that loads may still lack its builtins.
func compilerFindings(ctx context.Context) []finding {
	t, err := nvrtc.Discover()
	library := finding{What: "NVRTC", Needed: toCompile, Detail: "libnvrtc.so not found", Remedy: installToolchain, Tried: t.Tried}
	headers := finding{What: "CUDA headers", Needed: toCompile, Detail: "cuda_fp16.h not found", Remedy: installToolchain}
	if t.Include != "" {
		headers = finding{What: "CUDA headers", Needed: toCompile, Found: true, Detail: t.Include}
	}
	if t.Library == "" {
		return []finding{library, headers}
	}
	library.Tried = nil
	if err == nil {
		library.Detail, err = probe(ctx, t)
	} else {
		library.Detail, err = "at "+t.Library+" (not tried without headers)", nil
	}
	library.Found = err == nil
	if err != nil {
		library.Detail = err.Error()
	} else {
		library.Remedy = ""
	}
	return []finding{library, headers}
}

func probe(ctx context.Context, t *nvrtc.Toolchain) (string, error) {
	c, err := nvrtc.New(t, nil)
	if err != nil {
		return "", err
	}
	src := render.Source{Name: "probe.cu", Entry: "probe", Arch: "sm_90a",
		Text: "#include <cuda_bf16.h>\nextern \"C\" __global__ void probe(__nv_bfloat16* x) { *x = __float2bfloat16(1.0f); }\n"}
	if _, err := c.Compile(ctx, src, nvrtc.Options{}); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %s, %s; compiles for sm_90a", c.Version(), t.Origin, t.Library), nil
}

func cacheFinding() finding {
	f := finding{What: "module cache", Needed: toCache}
	dir, err := nvrtc.DefaultCache().Check()
	if err != nil {
		f.Detail, f.Remedy = err.Error(), "set KVLOOM_CACHE to a folder that can be written; until then every run compiles again"
		return f
	}
	f.Found, f.Detail = true, dir
	return f
}

// driverFindings are the CUDA driver and one line for each GPU.
func driverFindings() []finding {
	driver := finding{What: "CUDA driver", Needed: toRun}
	infos, err := cuda.Devices()
	var u *device.Unavailable
	switch {
	case errors.As(err, &u):
		driver.What, driver.Detail, driver.Remedy = u.What, u.Reason, u.Remedy
		return []finding{driver}
	case err != nil:
		driver.Detail, driver.Remedy = err.Error(), "install the NVIDIA driver 580 or newer"
		return []finding{driver}
	case len(infos) == 0:
		driver.Detail, driver.Remedy = "no device is visible", "check CUDA_VISIBLE_DEVICES and nvidia-smi"
		return []finding{driver}
	}
	v := infos[0].DriverVersion
	driver.Found = v >= cuda.MinDriver
	driver.Detail = strings.TrimSpace(fmt.Sprintf("CUDA %d.%d %s", v/1000, v%1000/10, infos[0].DriverName))
	if !driver.Found {
		driver.Remedy = fmt.Sprintf("the kernels' PTX needs CUDA %d.%d; install the driver 580 or newer", cuda.MinDriver/1000, cuda.MinDriver%1000/10)
	}
	findings := []finding{driver}
	for _, i := range infos {
		form := "portable kernels only"
		if i.Major == 9 && i.Minor == 0 {
			form = "Hopper kernels"
		}
		mig := ""
		if i.MultiInstanceGPU {
			mig = ", a MIG slice"
		}
		findings = append(findings, finding{What: fmt.Sprintf("GPU %d", i.Ordinal), Found: true, Needed: toRun, Detail: fmt.Sprintf(
			"%s, compute %d.%d, %d SMs, %d GiB%s: %s (%s)", i.Name, i.Major, i.Minor, i.SMs, i.MemoryBytes>>30, mig, form, i.UUID)})
	}
	return findings
}

func nvmlFinding() finding {
	f := finding{What: "NVML", Needed: toMeasure}
	lib, err := nvml.Open()
	var u *device.Unavailable
	switch {
	case errors.Is(err, nvml.ErrNoCgo):
		f.Detail, f.Remedy = "this binary was built without cgo", "build with CGO_ENABLED=1 and a C compiler"
		return f
	case errors.As(err, &u):
		f.Detail, f.Remedy = u.Reason, u.Remedy
		return f
	case err != nil:
		f.Detail, f.Remedy = err.Error(), "check nvidia-smi"
		return f
	}
	defer lib.Close()
	s, err := lib.ByIndex(0)
	if err != nil {
		f.Detail, f.Remedy = err.Error(), "check nvidia-smi"
		return f
	}
	f.Found = true
	f.Detail = fmt.Sprintf("driver %s; GPU 0 at %d MHz of %d, %.0f W of %.0f, %d C, held back by %s", s.Driver, s.SMClockMHz, s.MaxSMClockMHz,
		s.PowerWatts, s.PowerCapWatts, s.Celsius, s.Reasons)
	return f
}

// peerFindings are the Python packages that bench measures beside, by their installed versions: importing one would take seconds.
func peerFindings(ctx context.Context) []finding {
	packages := []struct{ peer, name string }{{"torch", "torch"}, {"flashinfer", "flashinfer-python"}, {"locks-kv", "locks-kv"}}
	findings := make([]finding, len(packages))
	python, err := exec.LookPath("python3")
	for i, p := range packages {
		findings[i] = finding{What: p.peer, Needed: optional, Remedy: "pip install " + p.name + ", in the python3 that is first on PATH", Detail: "no python3 on PATH"}
		if err != nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		out, missing := exec.CommandContext(within, python, "-c", "import importlib.metadata as m; print(m.version('"+p.name+"'))").Output()
		cancel()
		if missing != nil {
			findings[i].Detail = "not installed for " + filepath.Clean(python)
			continue
		}
		findings[i].Found, findings[i].Remedy, findings[i].Detail = true, "", strings.TrimSpace(string(out))+" for "+filepath.Clean(python)
	}
	return findings
}
