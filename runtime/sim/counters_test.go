package sim_test

import (
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/runtime/sim"
)

// TestCounters: each kernel does one thing whose counts are known.
func TestCounters(t *testing.T) {
	address := func(stride int) string {
		return fmt.Sprintf("ld.param.u64 %%rd1, [p];\nmov.u32 %%r1, %%tid.x;\nmul.wide.u32 %%rd2, %%r1, %d;\nadd.s64 %%rd1, %%rd1, %%rd2;\n", stride)
	}
	shared := func(stride int) string {
		return fmt.Sprintf("mov.u32 %%r2, s;\nmov.u32 %%r1, %%tid.x;\nmad.lo.u32 %%r2, %%r1, %d, %%r2;\n", stride)
	}
	for _, tc := range []struct {
		name, body string
		threads    uint32
		check      func(c sim.Counters) (got, want any)
	}{
		{"coalesced words", address(4) + "ld.global.u32 %r3, [%rd1];", 64, func(c sim.Counters) (any, any) {
			return c.GlobalReads, sim.Traffic{Requests: 2, Sectors: 8, Bytes: 256}
		}},
		{"one sector a lane", address(32) + "ld.global.u32 %r3, [%rd1];", 32, func(c sim.Counters) (any, any) {
			return c.GlobalReads, sim.Traffic{Requests: 1, Sectors: 32, Bytes: 128}
		}},
		{"vectors", address(16) + "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1];", 32, func(c sim.Counters) (any, any) {
			return c.GlobalReads, sim.Traffic{Requests: 1, Sectors: 16, Bytes: 512}
		}},
		{"one address", address(0) + "st.global.u32 [%rd1], %r1;", 32, func(c sim.Counters) (any, any) {
			return c.GlobalWrites, sim.Traffic{Requests: 1, Sectors: 1, Bytes: 128}
		}},
		{"no bank conflict", shared(4) + "st.shared.u32 [%r2], %r1;", 32, func(c sim.Counters) (any, any) {
			return [3]int64{c.SharedRequests, c.SharedWavefronts, c.SharedConflicts}, [3]int64{1, 1, 0}
		}},
		{"two-way conflict", shared(8) + "st.shared.u32 [%r2], %r1;", 32, func(c sim.Counters) (any, any) {
			return [3]int64{c.SharedRequests, c.SharedWavefronts, c.SharedConflicts}, [3]int64{1, 2, 1}
		}},
		{"32-way conflict", shared(128) + "st.shared.u32 [%r2], %r1;", 32, func(c sim.Counters) (any, any) {
			return [3]int64{c.SharedRequests, c.SharedWavefronts, c.SharedConflicts}, [3]int64{1, 32, 31}
		}},
		{"broadcast", shared(0) + "ld.shared.u32 %r3, [%r2];", 32, func(c sim.Counters) (any, any) {
			return [3]int64{c.SharedRequests, c.SharedWavefronts, c.SharedConflicts}, [3]int64{1, 1, 0}
		}},
		{"16-byte accesses", shared(16) + "ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r2];", 32, func(c sim.Counters) (any, any) {
			return [3]int64{c.SharedRequests, c.SharedWavefronts, c.SharedConflicts}, [3]int64{1, 4, 0}
		}},
		{"divergence", "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bra A;\nadd.s32 %r2, %r1, 1;\nA:\nsetp.lt.u32 %p1, %r1, 99;\n@%p1 bra B;\nadd.s32 %r2, %r1, 1;\nB:", 32,
			func(c sim.Counters) (any, any) { return [2]int64{c.Branches, c.DivergentBranches}, [2]int64{2, 1} }},
		{"instructions", "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 add.s32 %r2, %r1, 1;\nadd.f32 %f1, %f2, %f3;", 64, func(c sim.Counters) (any, any) {
			// 5 with the ret; the guarded add runs in 16 threads of the first warp, and is issued to both.
			return [4]int64{c.WarpInstructions, c.ThreadInstructions, c.ByGroup[sim.GroupFloat], c.Blocks}, [4]int64{10, 64*4 + 16, 2, 1}
		}},
		{"matrix", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};", 64, func(c sim.Counters) (any, any) {
			return c.TensorMultiplyAdds, int64(2 * 16 * 8 * 16)
		}},
		{"atomics", address(0) + "red.global.add.u32 [%rd1], 1;", 48, func(c sim.Counters) (any, any) { return c.AtomicOperations, int64(48) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := loadOne(t, sim.Config{Count: true}, ".shared .align 128 .b8 s[4096];\n"+tc.body+"\nret;", 1<<16)
			if err := k.launch(1, tc.threads); err != nil {
				t.Fatal(err)
			}
			if got, want := tc.check(k.device.Counters()["k"]); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}
