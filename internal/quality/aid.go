package quality

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
	"github.com/kvloom/kvloom/specs"
)

// aid is what a file's scores may use beside the file.
type aid struct {
	calibration *Calibration // nil: the prompt's own
	other       *layer       // of another text; nil: none
}

// aids reads the calibrations and other texts of every file.
func (o Options) aids(paths []string, layers []*layer) ([]aid, error) {
	out := make([]aid, len(layers))
	pick := func(what string, names []string, i int) (string, error) {
		switch len(names) {
		case 0:
			return "", nil
		case 1:
			return names[0], nil
		case len(layers):
			return names[i], nil
		}
		return "", fmt.Errorf("%d %s for %d files; give one for all or one a file", len(names), what, len(layers))
	}
	for i, l := range layers {
		calibration, err := pick("calibrations", o.Calibrations, i)
		if err != nil {
			return nil, err
		}
		other, err := pick("other texts", o.Others, i)
		if err != nil {
			return nil, err
		}
		if calibration != "" {
			if out[i].calibration, err = ReadCalibration(calibration); err != nil {
				return nil, err
			}
			if c := out[i].calibration; c.KVHeads != l.kvHeads || c.HeadDim != l.dim {
				return nil, fmt.Errorf("%s: calibration of %d KV heads of dim %d for %s with %d of dim %d", calibration, c.KVHeads, c.HeadDim, paths[i], l.kvHeads, l.dim)
			}
		}
		if other != "" {
			if out[i].other, err = load(other); err != nil {
				return nil, err
			}
			if x := out[i].other; x.kvHeads != l.kvHeads || x.dim != l.dim {
				return nil, fmt.Errorf("%s: %d KV heads of dim %d for %s with %d of dim %d", other, x.kvHeads, x.dim, paths[i], l.kvHeads, l.dim)
			}
		}
		weighted := false
		for _, f := range o.Forms {
			weighted = weighted || f.Weighted
		}
		if weighted && calibration == "" && l.scored(o.Queries) == l.last {
			return nil, fmt.Errorf("%s: a query-weighted basis needs queries that are not measured: ask for fewer than the file's %d last positions, or give a calibration", paths[i], l.last)
		}
	}
	return out, nil
}

// Calibration is what query-weighted bases and centred centroids of one layer need to know.
type Calibration struct {
	KVHeads, HeadDim int
	Moments          []float64 // [kv head, dim, dim] mean of q q^T over the group's queries
	MeanKeys         []float64 // [kv head, dim]
	Queries          int       // positions that the moments are the mean of
}

// Calibrate computes a calibration from dumps of one layer (k and q_last of each, of any texts), all queries of all files with the
// same weight.
func Calibrate(paths []string) (*Calibration, error) {
	var c *Calibration
	var tokens, positions int
	for _, path := range paths {
		l, err := load(path)
		if err != nil {
			return nil, err
		}
		if c == nil {
			c = &Calibration{KVHeads: l.kvHeads, HeadDim: l.dim, Moments: make([]float64, l.kvHeads*l.dim*l.dim), MeanKeys: make([]float64, l.kvHeads*l.dim)}
		}
		if c.KVHeads != l.kvHeads || c.HeadDim != l.dim {
			return nil, fmt.Errorf("%s: %d KV heads of dim %d, the files before it have %d of dim %d; a calibration is of one layer", path, l.kvHeads, l.dim, c.KVHeads, c.HeadDim)
		}
		for head := range l.kvHeads {
			axpy(c.Moments[head*l.dim*l.dim:(head+1)*l.dim*l.dim], float64(l.last), l.moment(head, l.last))
			axpy(c.MeanKeys[head*l.dim:(head+1)*l.dim], float64(l.tokens), l.meanKey(head, l.tokens))
		}
		tokens, positions = tokens+l.tokens, positions+l.last
	}
	if c == nil {
		return nil, fmt.Errorf("no files to calibrate from")
	}
	for i := range c.Moments {
		c.Moments[i] /= float64(positions)
	}
	for i := range c.MeanKeys {
		c.MeanKeys[i] /= float64(tokens)
	}
	c.Queries = positions
	return c, nil
}

// moment is the second moment of the first n queries of a KV head's group.
func (l *layer) moment(head, n int) []float64 {
	group := l.qHeads / l.kvHeads
	var queries []float64
	for g := range group {
		at := (head*group + g) * l.last * l.dim
		queries = append(queries, l.queries[at:at+n*l.dim]...)
	}
	return reference.SecondMoment(queries, l.dim)
}

// meanKey is the mean of a head's first n keys.
func (l *layer) meanKey(head, n int) []float64 {
	mean := make([]float64, l.dim)
	for t := range n {
		at := (head*l.tokens + t) * l.dim
		axpy(mean, 1/float64(n), l.keys[at:at+l.dim])
	}
	return mean
}

// Factors are what page_summary takes as its weights, [kv head] one after the other: Cholesky's factor of each shrunk moment, packed.
func (c *Calibration) Factors() []uint16 {
	var out []uint16
	for head := range c.KVHeads {
		w := reference.NewWeights(c.Moments[head*c.HeadDim*c.HeadDim:(head+1)*c.HeadDim*c.HeadDim], c.HeadDim)
		packed := reference.PackFactor(w.Factor(), c.HeadDim)
		for i := 0; i < len(packed); i += 2 {
			out = append(out, binary.LittleEndian.Uint16(packed[i:]))
		}
	}
	return out
}

// Write stores the calibration as safetensors: moments [kv head, dim, dim] and mean_key [kv head, dim], float32; and factors
// [kv head, packed], whose bytes are what PageSummaryArgs.Weights points to on a device.
func (c *Calibration) Write(path string) error {
	f := tensorfile.File{Metadata: map[string]string{"kvloom": "calibration", "queries": strconv.Itoa(c.Queries)}}
	f.Tensors = append(f.Tensors,
		tensorfile.Float32("moments", []int{c.KVHeads, c.HeadDim, c.HeadDim}, c.Moments),
		tensorfile.Float32("mean_key", []int{c.KVHeads, c.HeadDim}, c.MeanKeys))
	if c.HeadDim%16 == 0 { // as every head dim that kernels are built for
		factors := c.Factors()
		f.Tensors = append(f.Tensors, tensorfile.FromBits16("factors", "BF16", []int{c.KVHeads, len(factors) / c.KVHeads}, factors))
	}
	return f.Write(path)
}

// ReadCalibration reads what Write wrote.
func ReadCalibration(path string) (*Calibration, error) {
	c, err := specs.ReadCalibration(path)
	if err != nil {
		return nil, err
	}
	return &Calibration{KVHeads: c.KVHeads, HeadDim: c.HeadDim, Moments: c.Moments, MeanKeys: c.MeanKeys, Queries: c.Queries}, nil
}

// Spread says for each KV head over how many directions its queries spread: (tr S)^2 / tr(S^2), from 1 to the head dim. Where it is
// near the head dim, a query-weighted basis has nothing to gain.
func (c *Calibration) Spread() []float64 {
	out := make([]float64, c.KVHeads)
	for head := range out {
		s := c.Moments[head*c.HeadDim*c.HeadDim : (head+1)*c.HeadDim*c.HeadDim]
		var trace float64
		for i := range c.HeadDim {
			trace += s[i*c.HeadDim+i]
		}
		if square := dot(s, s); square > 0 {
			out[head] = trace * trace / square
		}
	}
	return out
}
