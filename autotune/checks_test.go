package autotune

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
)

// Three models were tuned with checks side by side, and the winners of one were condemned for memory that others held.
func TestAskAgain(t *testing.T) {
	full := measure.Response{Class: string(store.LaunchError), Message: "check far apart: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: out of memory"}
	refused := measure.Response{Class: string(store.LaunchError), Message: "CUDA_ERROR_INVALID_VALUE"}
	right := measure.Response{Class: string(store.OK)}
	responses := make([]measure.Response, 4)
	var asked [][]int
	err := askAgain(responses, func(at []int, try int) error {
		asked = append(asked, slices.Clone(at))
		for _, i := range at {
			responses[i] = []measure.Response{right, full, refused, full}[i]
			if i == 1 && try == 1 {
				responses[i] = right // few have room
			}
		}
		return nil
	})
	if diff := cmp.Diff([]measure.Response{right, right, refused, full}, responses); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	if diff := cmp.Diff([][]int{{0, 1, 2, 3}, {1, 3}, {3}}, asked); diff != "" {
		t.Error(diff)
	}
	lost := errors.New("the child is gone")
	if err := askAgain(responses, func([]int, int) error { return lost }); !errors.Is(err, lost) {
		t.Errorf("%v; want %v", err, lost)
	}
}
