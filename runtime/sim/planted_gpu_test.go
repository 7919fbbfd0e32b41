package sim_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
)

// endless are planted kernels that a GPU would never finish.
var endless = map[string]bool{"endless_loop": true, "nobody_sets_the_flag": true, "bytes_never_come": true, "barrier_short": true, "divergent_barrier": true,
	"barrier_counts_differ": true, "lost_lanes": true, "peer_has_left": true}

// TestPlantedOnGPU shows what compute-sanitizer finds of the planted faults. KVLOOM_PLANTED names one kernel to launch on the GPU, or "all":
// then each kernel runs in a process of its own under the tools of KVLOOM_SANITIZER ("memcheck racecheck synccheck initcheck" where it is
// empty), and the summary lines are logged. Nothing is asserted: the table in the docs is made of them.
func TestPlantedOnGPU(t *testing.T) {
	name := os.Getenv("KVLOOM_PLANTED")
	switch name {
	case "":
		t.Skip("KVLOOM_PLANTED=all launches the planted faults on a GPU, under compute-sanitizer")
	case "all":
		plantedUnderTools(t)
		return
	}
	for _, tc := range plantedFaults {
		if tc.name == name {
			plantedOnGPU(t, tc.name, tc.launch)
			return
		}
	}
	t.Fatalf("KVLOOM_PLANTED=%s: no such kernel", name)
}

func plantedUnderTools(t *testing.T) {
	tool, err := exec.LookPath("compute-sanitizer")
	if err != nil {
		t.Skipf("no compute-sanitizer: %v", err)
	}
	tools := strings.Fields(os.Getenv("KVLOOM_SANITIZER"))
	if len(tools) == 0 {
		tools = []string{"memcheck", "racecheck", "synccheck", "initcheck"}
	}
	for _, tc := range plantedFaults {
		if endless[tc.name] && tc.name != "divergent_barrier" && tc.name != "lost_lanes" && tc.name != "peer_has_left" {
			t.Logf("%s: a GPU would hang, not run", tc.name)
			continue
		}
		for _, k := range tools {
			cmd := exec.CommandContext(t.Context(), tool, "--tool", k, os.Args[0], "-test.run", "^TestPlantedOnGPU$", "-test.v")
			cmd.Env = append(os.Environ(), "KVLOOM_PLANTED="+tc.name)
			cmd.WaitDelay = time.Second
			timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
			out, err := cmd.CombinedOutput()
			timer.Stop()
			t.Logf("%s %s: %s (%v)", tc.name, k, findings(string(out)), err)
		}
	}
}

// findings are compute-sanitizer's own lines, the first few.
func findings(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if s, ok := strings.CutPrefix(line, "========= "); ok && len(lines) < 6 {
			lines = append(lines, strings.TrimSpace(s))
		}
	}
	return strings.Join(lines, "; ")
}

func plantedOnGPU(t *testing.T, kernel string, l device.Launch) {
	text := compilePlanted(t, os.Getenv("KVLOOM_PLANTED_TWIN") != "1", "sm_90a")
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := d.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function(kernel)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	a := plantedArgs{n: plantedN}
	for _, p := range []*device.Ptr{&a.x, &a.y, &a.u, &a.c} {
		size := int64(plantedN * 4)
		if p == &a.c {
			size = 4
		}
		if *p, err = d.Alloc(size); err == nil && p != &a.u {
			err = d.Fill(*p, 0, size)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if kernel == "use_after_free" {
		if err := d.Free(a.x); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(f.Launch(s, &l, unsafe.Pointer(&a), unsafe.Sizeof(a)), s.Synchronize())
	t.Logf("%s: %v", kernel, err)
}
