package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// A limit of clusters leaves the same families, by their next candidates.
func TestMaxCluster(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s, err := specs.Resolve("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	families := map[int]map[plan.Family]bool{}
	for _, limit := range []int{0, 8} {
		p, err := Plan(dev.Info(), s, Options{MaxCluster: limit})
		if err != nil {
			t.Fatal(err)
		}
		families[limit] = map[plan.Family]bool{}
		largest := 0
		for _, c := range p.Candidates {
			families[limit][c.Family] = true
			largest = max(largest, c.Geometry.Cluster)
		}
		if want := map[int]int{0: 16, 8: 8}[limit]; largest != want {
			t.Errorf("limit %d: the largest cluster is %d, want %d", limit, largest, want)
		}
	}
	if len(families[0]) != len(families[8]) {
		t.Errorf("families %v without a limit, %v with one", families[0], families[8])
	}
}
