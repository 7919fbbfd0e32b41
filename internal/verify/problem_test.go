package verify

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/specs"
)

// smallSpec is a spec of two KV heads that every test here can afford.
func smallSpec() *specs.Spec {
	s := specs.New("small", 4, 2, 64)
	s.Locks.BudgetTokens = 128
	return s
}

func TestProblemsAreRepeatable(t *testing.T) {
	s := smallSpec()
	for _, c := range Cases(s, Options{}) {
		one, err := NewProblem(s, c, 7)
		if err != nil {
			t.Fatal(err)
		}
		two, _ := NewProblem(s, c, 7)
		other, _ := NewProblem(s, c, 8)
		if diff := cmp.Diff(one.Cache.Table, two.Cache.Table); diff != "" {
			t.Errorf("%s: %s", c.Name, diff)
		}
		id := one.Cache.Blocks()[len(one.Cache.Blocks())-1]
		if diff := cmp.Diff(one.Cache.BlockKeys(id, 0), two.Cache.BlockKeys(id, 0)); diff != "" {
			t.Errorf("%s: %s", c.Name, diff)
		}
		if c.Data == Random && c.Lens[0] > 64 && cmp.Equal(one.Q.Bits, other.Q.Bits) {
			t.Errorf("%s: two seeds give one problem", c.Name)
		}
	}
}

// TestTrapsLieBehindLivePages: whatever a kernel reads beyond the live tokens is NaN, -1 or out of range.
func TestTrapsLieBehindLivePages(t *testing.T) {
	s := smallSpec()
	for _, c := range Cases(s, Options{}) {
		p, err := NewProblem(s, c, 1)
		if err != nil {
			t.Fatal(err)
		}
		lens := c.longest()
		for b, n := range lens {
			pages := p.Cache.Pages(n)
			for i := pages; i < p.Cache.MaxPages; i++ {
				if id := p.Cache.Block(b, i); id >= 0 && id < math.MaxInt32 && c.Shared == 0 {
					if x := p.Cache.BlockKeys(id, 0)[0]; x != nanBits && b == 0 {
						t.Errorf("%s: request %d, page %d behind the end is block %d with live keys", c.Name, b, i, id)
					}
				}
			}
			if tail := n % p.Cache.PageSize; tail > 0 && c.Shared == 0 {
				if id := p.Cache.Block(b, pages-1); id >= 0 && p.Cache.BlockValues(id, 0)[tail*p.Cache.HeadDim] != nanBits {
					t.Errorf("%s: request %d: token %d behind the end is not NaN", c.Name, b, n)
				}
			}
			for i := range pages {
				if id := p.Cache.Block(b, i); id < 0 && !c.Holes {
					t.Errorf("%s: live page %d of request %d has no block", c.Name, i, b)
				}
			}
		}
	}
}

// TestLayoutsDoNotOverlap: no two live elements of K and V share an address, whatever the strides.
func TestLayoutsDoNotOverlap(t *testing.T) {
	s := smallSpec()
	for _, c := range Cases(s, Options{}) {
		p, err := NewProblem(s, c, 1)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[[2]int64]bool{} // buffer, row's first element
		for _, id := range p.Cache.Blocks() {
			for h := range p.Cache.KVHeads {
				for token := range p.Cache.PageSize {
					k, v := [2]int64{0, p.Cache.KOffset(id, token, h)}, [2]int64{1, p.Cache.VOffset(id, token, h)}
					if p.Cache.Joint {
						v[0] = 0
					}
					for _, at := range [][2]int64{k, v} {
						for step := int64(0); step < int64(p.Cache.HeadDim); step += 8 {
							if at[1] += min(step, 8); seen[at] {
								t.Fatalf("%s: block %d, token %d, head %d overlaps at %v", c.Name, id, token, h, at)
							}
							seen[at] = true
						}
					}
					if k[1]%8 != 0 || v[1]%8 != 0 {
						t.Fatalf("%s: rows are not aligned to 16 bytes", c.Name)
					}
				}
			}
		}
	}
}

func TestQuickCasesExist(t *testing.T) {
	found := map[string]bool{}
	for _, c := range Cases(smallSpec(), Options{Workloads: "quick"}) {
		found[c.Name] = true
	}
	for _, c := range ScoreCases(Options{Workloads: "quick"}) {
		found[c.Name] = true
	}
	if diff := cmp.Diff(quick, found); diff != "" {
		t.Error(diff)
	}
}

func TestFarApartPasses32Bits(t *testing.T) {
	for _, heads := range []int{1, 8} {
		s := specs.New("far", heads, heads, 128)
		for _, c := range Cases(s, Options{Only: "far apart"}) {
			p, err := NewProblem(s, c, 1)
			if err != nil {
				t.Fatal(err)
			}
			if k, _ := p.Cache.Elements(); k < 1<<32 {
				t.Errorf("%d heads: %d elements fit into 32 bits", heads, k)
			}
		}
	}
}

func TestWideLogitsAreWide(t *testing.T) {
	s := smallSpec()
	c := Cases(s, Options{Only: "wide logits"})[0]
	p, err := NewProblem(s, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	largest := 0.0
	for _, row := range p.Cache.Score(p.Cache.Build(p.Shape), p.Q, p.Logits).Largest {
		for _, x := range row {
			largest = max(largest, x)
		}
	}
	if largest < 64 || largest > 300 {
		t.Errorf("the largest |logit| is %g, want 64 and somewhat more", largest)
	}
}

// TestUploadFollowsStrides reads a token back from the device through the argument struct alone.
func TestUploadFollowsStrides(t *testing.T) {
	s := smallSpec()
	for _, name := range []string{"33 pages", "half-full last page", "mixed lengths", "interleaved", "one kv head"} {
		p, err := NewProblem(s, Cases(s, Options{Only: name})[0], 1)
		if err != nil {
			t.Fatal(err)
		}
		dev := newFake()
		e := NewEnv(dev, nil)
		d, err := p.Upload(e.NewArena())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		args := d.Args()
		b := len(p.Case.Lens) - 1
		table := Int32s(dev.at(args.BlockTable, 4*len(p.Cache.Table)))
		id := table[int64(b)*args.TableStride+1]
		h := int64(args.KVHeads - 1)
		at := args.K + 2*devicePtr(int64(id)*args.KBlockStride+2*args.KTokenStride+h*args.KHeadStride)
		got := Uint16s(dev.at(at, 2*p.Cache.HeadDim))
		if diff := cmp.Diff(p.Cache.BlockKeys(id, int(h))[2*64:3*64], got); diff != "" {
			t.Errorf("%s: k: %s", name, diff)
		}
		at = args.V + 2*devicePtr(int64(id)*args.VBlockStride+3*args.VTokenStride+h*args.VHeadStride)
		got = Uint16s(dev.at(at, 2*p.Cache.HeadDim))
		if diff := cmp.Diff(p.Cache.BlockValues(id, int(h))[3*64:4*64], got); diff != "" {
			t.Errorf("%s: v: %s", name, diff)
		}
		if err := d.Arena.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestScoreCasesHaveTheirCorners(t *testing.T) {
	s := smallSpec()
	for _, c := range ScoreCases(Options{}) {
		p, err := NewScoreProblem(s, c, 3)
		if err != nil {
			t.Fatal(err)
		}
		for b, n := range c.Pages {
			if got := int(p.SeqLens(c.Pages)[b]); (got+15)/16 != n {
				t.Errorf("%s: %d tokens are not %d pages", c.Name, got, n)
			}
			if n == 0 {
				continue
			}
			rows := p.Float64(b, p.Lists-1, n)
			if len(rows) != p.Group {
				t.Fatalf("%s: %d rows, want the group", c.Name, len(rows))
			}
			// The reference's own choice passes its own check, on every case.
			if _, err := p.Budget.Check(p.Rule, rows, p.Budget.Choose(p.Rule.Values(rows)), reference.Given); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}

func TestSweeps(t *testing.T) {
	axes, err := ParseSweep("axes")
	if err != nil {
		t.Fatal(err)
	}
	random, err := ParseSweep("random:200:5")
	if err != nil {
		t.Fatal(err)
	}
	again, _ := ParseSweep("random:200:5")
	rest, err := ParseSweep("random:200:5:180")
	if err != nil || !cmp.Equal(rest, random[180:]) {
		t.Errorf("from spec 180 on: %d specs, %v; want the last 20 of the same", len(rest), err)
	}
	if diff := cmp.Diff(random, again); diff != "" {
		t.Errorf("a seed does not repeat: %s", diff)
	}
	for _, s := range append(axes, random...) {
		if err := specs.Validate(s); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
	for _, bad := range []string{"", "axis", "random", "random:0", "random:5:1:5", "random:5:1:2:3", "random:x", "random:5:y", "random:-3"} {
		if _, err := ParseSweep(bad); err == nil {
			t.Errorf("sweep %q was accepted", bad)
		}
	}
}
