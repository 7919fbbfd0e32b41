package kernel

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/internal/launch"
)

var quantities = map[launch.Quantity]bool{
	launch.One: true, launch.Batch: true, launch.KVHeads: true, launch.QHeads: true, launch.Lists: true, launch.MaxPages: true,
	launch.NewPages: true, launch.StepHeads: true, launch.Slots: true, launch.SMs: true,
}

// validate refuses what a later step would trip over: it stands between a file and the rest of the package.
func (b *Bundle) validate() error {
	if err := b.Model.validate(); err != nil {
		return err
	}
	for i := range b.Kernels {
		if err := b.Kernels[i].validate(); err != nil {
			return fmt.Errorf("kernel %d (%s): %w", i, b.Kernels[i].Family, err)
		}
	}
	if len(b.Works) == 0 {
		return errors.New("it holds no work")
	}
	for _, c := range b.Crossovers {
		if err := c.validate(); err != nil {
			return err
		}
	}
	for i, c := range b.Calibrations {
		if err := b.Model.validateCalibration(c); err != nil {
			return fmt.Errorf("calibration of layer %d: %w", i, err)
		}
	}
	seen := map[string]bool{}
	for i := range b.Works {
		w := &b.Works[i]
		if seen[w.Name] {
			return fmt.Errorf("work %q stands there twice", w.Name)
		}
		seen[w.Name] = true
		if err := b.validateWork(w); err != nil {
			return fmt.Errorf("work %q: %w", w.Name, err)
		}
	}
	return nil
}

func (m Model) validate() error {
	for _, f := range []struct {
		name    string
		v, low  int
		highest int
	}{
		{"query_heads", m.QueryHeads, 1, 1 << 16}, {"kv_heads", m.KVHeads, 1, 1 << 16}, {"head_dim", m.HeadDim, 8, 1 << 12},
		{"page_size", m.PageSize, 1, 1 << 12}, {"rank", m.Rank, 1, 1 << 8}, {"basis_bits", m.BasisBits, 1, 32}, {"record_bytes", m.RecordBytes, 16, 1 << 24}, {"slots", m.Slots, 1, math.MaxInt32},
		{"sink_pages", m.SinkPages, 0, math.MaxInt32}, {"recent_pages", m.RecentPages, 0, math.MaxInt32},
	} {
		if f.v < f.low || f.v > f.highest {
			return fmt.Errorf("model: %s is %d, allowed are %d to %d", f.name, f.v, f.low, f.highest)
		}
	}
	switch {
	case m.QueryHeads%m.KVHeads != 0:
		return fmt.Errorf("model: %d query heads do not divide into %d KV heads", m.QueryHeads, m.KVHeads)
	case m.RecordBytes%16 != 0:
		return fmt.Errorf("model: record_bytes is %d, no multiple of 16", m.RecordBytes)
	case m.SummaryPages != 0 && (m.SummaryPages < 2 || m.SummaryPages > 4 || m.Candidates == 0):
		return fmt.Errorf("model: %d pages share a summary, allowed are 2 to 4 where candidates are proposed", m.SummaryPages)
	case m.Candidates != 0 && m.Candidates*m.GroupPages() < m.Slots:
		return fmt.Errorf("model: %d candidates for %d slots", m.Candidates, m.Slots)
	case m.Slots < m.SinkPages+m.RecentPages:
		return fmt.Errorf("model: %d slots hold less than %d sink and %d recent pages", m.Slots, m.SinkPages, m.RecentPages)
	case m.Drop != (DropModel{}) && (m.Drop.Window < 1 || m.Drop.Window > 64):
		return fmt.Errorf("model: a window of %d queries, allowed are 1 to 64", m.Drop.Window)
	case !slices.Contains(dtypes, m.DType):
		return fmt.Errorf("model: dtype %q is not one of %s", m.DType, strings.Join(dtypes, ", "))
	case m.Kivi() != strings.HasPrefix(m.DType, "kivi") || m.StoreBytes < 0 || m.StoreBytes%vectorBytes != 0:
		return fmt.Errorf("model: a cache of %s with pages of %d quantised bytes", m.DType, m.StoreBytes)
	}
	return nil
}

func (m Model) validateCalibration(c Calibration) error {
	if want := WeightBytes(m.KVHeads, m.HeadDim); len(c.Weights) > 0 && int64(len(c.Weights)) != want {
		return fmt.Errorf("weights of %d bytes, %d KV heads of dim %d have %d", len(c.Weights), m.KVHeads, m.HeadDim, want)
	}
	if want := 4 * m.KVHeads * m.HeadDim; len(c.MeanKey) > 0 && len(c.MeanKey) != want {
		return fmt.Errorf("mean keys of %d bytes, %d KV heads of dim %d have %d", len(c.MeanKey), m.KVHeads, m.HeadDim, want)
	}
	if m.Basis == queryWeighted && len(c.Weights) == 0 {
		return errors.New("no weights, which query-weighted summaries read")
	}
	return nil
}

func (k *Kernel) validate() error {
	g := k.Geometry
	switch {
	case familyOf(k.Family) == "":
		return errors.New("no such family")
	case k.Entry == "":
		return errors.New("the entry's name is missing")
	case len(k.Cubin) == 0 && len(k.PTX) == 0:
		return errors.New("it has neither cubin nor PTX")
	case (len(k.Cubin) > 0) != (k.CubinArch != ""):
		return fmt.Errorf("a cubin of %d bytes for architecture %q", len(k.Cubin), k.CubinArch)
	case g.Block < 1 || g.Block > 1024:
		return fmt.Errorf("a block of %d threads", g.Block)
	case g.Cluster < 1 || g.Cluster > 16:
		return fmt.Errorf("a cluster of %d blocks", g.Cluster)
	case g.DynamicShared < 0 || g.DynamicShared > 1<<20:
		return fmt.Errorf("%d bytes of dynamic shared memory", g.DynamicShared)
	}
	extents := append(g.Grid[:], g.Workspace...)
	if f := g.First; f != nil {
		if f.Entry == "" || f.Block < 1 || f.Block > 1024 || f.DynamicShared < 0 || f.DynamicShared > 1<<20 || f.Counters < 0 || f.Counters >= len(g.Workspace) {
			return fmt.Errorf("an impossible first kernel %+v", *f)
		}
		extents = append(extents, f.Grid[:]...)
	}
	for _, e := range extents {
		if e.Times < 0 || e.Times > 1<<31 || e.Per < 1 || e.Per > 1<<31 || e.AtMost < 0 || len(e.Of) > 4 {
			return fmt.Errorf("an impossible extent %+v", e)
		}
		for _, q := range e.Of {
			if !quantities[q] {
				return fmt.Errorf("geometry of an unknown quantity %q", q)
			}
		}
	}
	return nil
}

func (b *Bundle) validateWork(w *Work) error {
	family := familyOf(w.Name)
	if family == "" {
		return errors.New("no such work")
	}
	check := func(what string, i int) error {
		if i < 0 || i >= len(b.Kernels) {
			return fmt.Errorf("%s is kernel %d of %d", what, i, len(b.Kernels))
		}
		if b.Kernels[i].Family != family {
			return fmt.Errorf("%s is a kernel of %s", what, b.Kernels[i].Family)
		}
		return nil
	}
	if err := check("the default", w.Default); err != nil {
		return err
	}
	if w.Portable >= 0 || !Optional(w.Name) {
		if err := check("the portable form", w.Portable); err != nil {
			return err
		}
		if len(b.Kernels[w.Portable].PTX) == 0 {
			return errors.New("the portable form has no PTX")
		}
	}
	seen := map[Workload]bool{}
	of := func(what string, at Workload, index int) error {
		if err := check(fmt.Sprintf("the %s for %v", what, at), index); err != nil {
			return err
		}
		if at.Context < 1 || at.Batch < 1 || seen[at] {
			return fmt.Errorf("the workload %+v is impossible or stands there twice", at)
		}
		seen[at] = true
		return nil
	}
	for _, p := range w.Points {
		if err := of("choice", p.Workload, p.Kernel); err != nil {
			return err
		}
	}
	for _, d := range w.Defaults {
		if err := of("default", d.Workload, d.Kernel); err != nil {
			return err
		}
	}
	return nil
}

// Optional reports whether a work may lack a portable form, for others do the same: a Set on another architecture is without it.
func Optional(work string) bool {
	return work == DropObserveScore || work == PageRerankAttend || work == PageSelectRerankAttend || work == PageSelectAttend
}

// familyOf is the kernel family of a work, or "".
func familyOf(work string) string {
	switch work {
	case PageSummary, PageScore, PageSelect, PageSelectAttend, PageRerank, PageRerankAttend, PageSelectRerankAttend, PageAttend, KVQuantize, QueryMoment, QueryFactor, DropObserve, DropScore, DropObserveScore, DropPool, DropAllot, DropSelect, DropPoolSelect, DropCompact:
		return work
	case Dense:
		return PageAttend
	}
	return ""
}
