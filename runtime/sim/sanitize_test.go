package sim_test

import (
	"errors"
	"testing"

	"github.com/kvloom/kvloom/runtime/sim"
)

// TestVectorNeighbours: a vector load brings words along that nothing reads; those are neither raced on nor missed.
func TestVectorNeighbours(t *testing.T) {
	for _, tc := range []struct {
		name, use string
		races     int
	}{
		{"the last word is not read", "", 0},
		{"the last word is read", "add.u32 %r3, %r3, %r6;", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// Warp 0 reads {0, 1, 2, 3}; warp 1 adds to word 3 with no barrier between.
			k := loadOne(t, sim.Config{Sanitize: true, Workers: 1}, `.shared .align 16 .b8 s[16];
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mov.u32 %r2, s;
setp.ne.u32 %p1, %r1, 0;
@!%p1 st.shared.v4.u32 [%r2], {%r1, %r1, %r1, %r1};
bar.sync 0;
setp.gt.u32 %p2, %r1, 31;
@%p2 bra ADD;
ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r2];
add.u32 %r3, %r3, %r4;
add.u32 %r3, %r3, %r5;
`+tc.use+`
@!%p1 st.global.u32 [%rd1], %r3;
ret;
ADD:
atom.shared.add.u32 %r7, [%r2+12], 1;
ret;`, 4)
			err := k.launch(1, 64)
			var r sim.Reports
			if errors.As(err, &r); len(r) != tc.races {
				t.Errorf("%d reports, want %d: %v", len(r), tc.races, err)
			}
			if got := k.device.Reports(); len(got) != tc.races {
				t.Errorf("the device keeps %d reports, want %d", len(got), tc.races)
			}
		})
	}
}

// TestEqualStores: two blocks that store the same bytes are no race, whatever the widths; two that store different ones are. A read beside
// a store is one in any case.
func TestEqualStores(t *testing.T) {
	for _, tc := range []struct {
		name, code string
		races      int
	}{
		{"the same word", "st.global.u32 [%rd1], 7;", 0},
		{"different words", "st.global.u32 [%rd1], %r1;", 1},
		{"the same halves, apart", "st.global.u16 [%rd1], 7;\nst.global.u16 [%rd1+2], 8;", 0},
		{"another lower half", "st.global.u16 [%rd1], %r1;\nst.global.u16 [%rd1+2], 8;", 1},
		{"the same vector", "st.global.v2.u32 [%rd1], {7, 8};", 0},
		{"a vector, another second word", "st.global.v2.u32 [%rd1], {7, %r1};", 1},
		{"the same double word", "mov.u64 %rd2, 0x700000008;\nst.global.u64 [%rd1], %rd2;", 0},
		{"a byte of another's word", "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.global.u32 [%rd1], 0x01020304;\n@!%p1 st.global.u8 [%rd1+1], 3;", 0},
		{"another byte", "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.global.u32 [%rd1], 0x01020304;\n@!%p1 st.global.u8 [%rd1+1], 4;", 1},
		{"a store and a read of it", "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.global.u32 [%rd1], 0;\n@!%p1 ld.global.u32 %r2, [%rd1];\n@!%p1 st.global.u32 [%rd1+4], %r2;", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := loadOne(t, sim.Config{Sanitize: true, Workers: 1}, "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %ctaid.x;\n"+tc.code+"\nret;", 8)
			err := k.launch(2, 1)
			var r sim.Reports
			if errors.As(err, &r); len(r) != tc.races {
				t.Errorf("%d reports, want %d: %v", len(r), tc.races, err)
			}
		})
	}
}

// TestCountersOfTwoLaunches: one launch stores a counter plainly, the next counts it, both at the same instruction number of the same
// warp. The store is no part of the count, so a second block that counts is no race.
func TestCountersOfTwoLaunches(t *testing.T) {
	k := loadOne(t, sim.Config{Sanitize: true, Workers: 1}, `ld.param.u64 %rd1, [p];
ld.global.u32 %r1, [%rd1+4];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra COUNT;
st.global.u32 [%rd1], 0;
ret;
COUNT:
atom.global.add.u32 %r2, [%rd1], 1;
ret;`, 8)
	for _, blocks := range []uint32{1, 2} {
		if err := k.device.Write(k.memory, []byte{0, 0, 0, 0, byte(blocks - 1), 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(k.launch(blocks, 1), k.stream.Synchronize()); err != nil {
			t.Errorf("%d blocks: %v", blocks, err)
		}
	}
}
