package sim_test

import (
	_ "embed"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

//go:embed testdata/planted.cu
var planted string

// plantedArgs mirrors Args of planted.cu.
type plantedArgs struct {
	x, y, u, c device.Ptr
	n          int32
	_          int32
}

const plantedN = 64

// compilePlanted compiles planted.cu with or without the faults.
func compilePlanted(t *testing.T, faulty bool, arch string) []byte {
	t.Helper()
	define := "#define FAULTY 0\n#line 1\n"
	if faulty {
		define = "#define FAULTY 1\n#line 1\n"
	}
	return nvrtctest.Compile(t, render.Source{Name: "planted.cu", Text: define + planted, Entry: "off_by_one", Arch: arch, Hash: define + planted}).PTX
}

// plantedLine is the line of a kernel that ends in the marker; 0: it has none, any line will do.
func plantedLine(t *testing.T, kernel string) int {
	t.Helper()
	inside := false
	for i, text := range strings.Split(planted, "\n") {
		if strings.HasPrefix(text, "KERNEL(") {
			inside = strings.HasPrefix(text, "KERNEL("+kernel+")")
		}
		if inside && strings.HasSuffix(text, "// HERE") {
			return i + 1
		}
	}
	return 0
}

// runPlanted runs one kernel on a fresh simulator.
func runPlanted(t *testing.T, ptx []byte, kernel string, l device.Launch, freed bool, c sim.Config) error {
	t.Helper()
	d, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := d.Load(ptx)
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
		if *p, err = d.Alloc(size); err != nil {
			t.Fatal(err)
		}
		if p == &a.u {
			continue
		}
		if err := d.Fill(*p, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	if freed {
		if err := d.Free(a.x); err != nil {
			t.Fatal(err)
		}
	}
	if l.Dependent {
		if err := f.Launch(s, &l, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil {
			return err
		}
	}
	return f.Launch(s, &l, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// faults flattens a launch's error.
func faults(err error) []*sim.Fault {
	var out []*sim.Fault
	var f *sim.Fault
	if errors.As(err, &f) {
		out = append(out, f)
	}
	var r sim.Reports
	if errors.As(err, &r) {
		out = append(out, r...)
	}
	return out
}

func grid(blocks, threads, cluster uint32) device.Launch {
	return device.Launch{Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}, Cluster: [3]uint32{cluster, 1, 1}}
}

// dependent marks a launch for programmatic dependent launch; such a kernel is launched twice.
func dependent(l device.Launch) device.Launch {
	l.Dependent = true
	return l
}

// plantedFaults says what each kernel of planted.cu must be reported for.
var plantedFaults = []struct {
	name   string
	kind   sim.FaultKind
	launch device.Launch
	reason string
}{
	{"off_by_one", "out of bounds", grid(3, 32, 1), "one element past the end of a global array"},
	{"negative_index", "out of bounds", grid(1, 32, 1), "one element before the start"},
	{"shared_overrun", "out of bounds", grid(1, 64, 1), "one element past the end of shared memory"},
	{"local_overrun", "out of bounds", grid(1, 1, 1), "a run-time index past a local array"},
	{"misaligned_vector", "misaligned address", grid(1, 1, 1), "float4 on a 4-byte boundary"},
	{"use_after_free", "use after free", grid(1, 32, 1), "the host freed x"},
	{"unwritten_shared", "uninitialised read", grid(1, 64, 1), "the last element was not set"},
	{"unwritten_global", "uninitialised read", grid(1, 32, 1), "the host never filled u"},
	{"unwritten_register", "uninitialised read", grid(1, 1, 1), "a register with no value is stored"},
	{"missing_barrier", "race", grid(1, 64, 1), "read of another warp's element"},
	{"missing_second_barrier", "race", grid(1, 64, 1), "overwritten while another warp still reads"},
	{"missing_syncwarp", "race", grid(1, 32, 1), "read of another lane's element"},
	{"half_block_barrier", "race", grid(1, 64, 1), "each warp meets only itself"},
	{"missing_fence", "race", grid(2, 1, 1), "data and flag may be seen in the other order"},
	{"missing_acquire", "race", grid(2, 1, 1), "data may be read before the flag"},
	{"last_block", "race", grid(2, 32, 1), "the count says done before the data is visible"},
	{"blocks_collide", "race", grid(2, 32, 1), "two blocks write the same elements"},
	{"plain_counter", "race", grid(2, 32, 1), "read, add and write without an atomic"},
	{"divergent_barrier", "divergence", grid(1, 32, 1), "half a warp at a barrier"},
	{"barrier_short", "deadlock", grid(1, 64, 1), "fewer threads than the barrier counts"},
	{"barrier_counts_differ", "barrier misuse", grid(1, 64, 1), "two counts for one barrier"},
	{"stale_phase", "race", grid(1, 32, 1), "the parity of the phase before is always complete"},
	{"bytes_never_come", "deadlock", grid(1, 32, 1), "more bytes expected than copied"},
	{"missing_proxy_fence", "missing proxy fence", grid(1, 64, 1), "the copy engine may read old data"},
	{"buffer_reused", "race", grid(1, 64, 1), "no empty barrier"},
	{"bulk_size", "bad operand", grid(1, 32, 1), "not a multiple of 16 bytes"},
	{"async_not_waited", "race", grid(1, 32, 1), "cp.async without its wait"},
	{"async_no_barrier", "race", grid(1, 64, 1), "a wait covers only the thread's own copies"},
	{"barrier_not_made", "barrier misuse", grid(1, 32, 1), "an mbarrier nobody initialised"},
	{"too_many_arrivals", "barrier misuse", grid(1, 32, 1), "an arrival more than the phase has"},
	{"cluster_race", "race", grid(2, 32, 2), "distributed shared memory without a cluster barrier"},
	{"peer_has_left", "out of bounds", grid(2, 32, 2), "distributed shared memory of a block that has exited"},
	{"cluster_arrive_twice", "barrier misuse", grid(2, 32, 2), "two arrivals in one phase"},
	{"lost_lanes", "divergence", grid(1, 32, 1), "a shuffle names lanes that went another way"},
	{"nobody_sets_the_flag", "deadlock", grid(2, 1, 1), "a poll that can never end"},
	{"dependent_no_wait", "race", dependent(grid(1, 32, 1)), "the launch before may still be writing"},
	{"product_no_fence", "missing proxy fence", grid(1, 128, 1), "the tensor core may read old operands"},
	{"product_not_waited", "race", grid(1, 128, 1), "an accumulator is read while the product runs"},
	{"product_operand_reused", "race", grid(1, 64*2, 1), "an operand is overwritten while the product runs"},
	{"endless_loop", "instruction limit", grid(1, 1, 1), "a loop that never ends"},
}

func TestPlanted(t *testing.T) {
	faulty, fixed := compilePlanted(t, true, "sm_90a"), compilePlanted(t, false, "sm_90a")
	for _, tc := range plantedFaults {
		t.Run(tc.name, func(t *testing.T) {
			c := sim.Config{Sanitize: true, Workers: 1, InstructionLimit: 5_000_000}
			err := runPlanted(t, faulty, tc.name, tc.launch, tc.name == "use_after_free", c)
			line := plantedLine(t, tc.name)
			var found []string
			hit := false
			for _, f := range faults(err) {
				found = append(found, f.Error())
				hit = hit || f.Kind == tc.kind && (line == 0 || f.Line == line || f.CallLine == line)
			}
			if !hit {
				t.Errorf("%s: want %q at line %d, got %q (%v)", tc.reason, tc.kind, line, found, err)
			}
			if err := runPlanted(t, fixed, tc.name, tc.launch, false, c); err != nil {
				t.Errorf("the correct twin is reported: %v", err)
			}
		})
	}
}
