package specs

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"github.com/kvloom/kvloom/internal/tensorfile"
)

// Calibration is what kvloom calibrate measured of one layer: the second moment of its queries and the mean of its keys.
type Calibration struct {
	KVHeads, HeadDim int
	Moments          []float64 // [kv head, dim, dim]
	MeanKeys         []float64 // [kv head, dim]
	Queries          int       // positions behind the moments; 0 where the file does not say
}

// ReadCalibration reads a file of kvloom calibrate.
func ReadCalibration(path string) (*Calibration, error) {
	f, err := tensorfile.Read(path)
	if err != nil {
		return nil, err
	}
	if f.Metadata["kvloom"] != "calibration" {
		return nil, fmt.Errorf("%s is no calibration; kvloom calibrate makes one", path)
	}
	c := &Calibration{}
	c.Queries, _ = strconv.Atoi(f.Metadata["queries"])
	for name, into := range map[string]*[]float64{"moments": &c.Moments, "mean_key": &c.MeanKeys} {
		t, err := f.Tensor(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if *into, err = t.Float32s(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if name == "moments" && len(t.Shape) == 3 {
			c.KVHeads, c.HeadDim = t.Shape[0], t.Shape[1]
		}
	}
	if n := c.KVHeads * c.HeadDim; n == 0 || len(c.Moments) != n*c.HeadDim || len(c.MeanKeys) != n {
		return nil, fmt.Errorf("%s: moments are [KV heads, dim, dim] and mean_key [KV heads, dim]", path)
	}
	return c, nil
}

// Calibrations reads the files that locks.calibration names, one a layer, and holds them against the spec. Relative names start in the spec's
// folder.
func (s *Spec) Calibrations() ([]*Calibration, error) {
	var list []*Calibration
	for _, name := range s.Locks.Calibration {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.Folder, path)
		}
		c, err := ReadCalibration(path)
		if err != nil {
			return nil, err
		}
		if a := s.Attention; c.KVHeads != a.KVHeads || c.HeadDim != a.HeadDim {
			return nil, fmt.Errorf("%s is of %d KV heads of dim %d, the spec has %d of dim %d", path, c.KVHeads, c.HeadDim, a.KVHeads, a.HeadDim)
		}
		for _, x := range c.MeanKeys {
			if math.IsNaN(x) || math.IsInf(x, 0) {
				return nil, fmt.Errorf("%s holds a mean key that is not finite", path)
			}
		}
		list = append(list, c)
	}
	return list, nil
}

// faultCalibration refuses a calibration that nothing would read, and files that are none.
func faultCalibration(s *Spec, d *decoder) string {
	switch l := s.Locks; {
	case len(l.Calibration) == 0:
		return ""
	case l.Basis != "query_weighted" && l.CentroidBits != 4:
		return "locks.calibration serves basis query_weighted and centroid_bits 4, and the spec has neither; remove it"
	case !d.disk:
		return ""
	}
	if _, err := s.Calibrations(); err != nil {
		return "locks.calibration: " + err.Error()
	}
	return ""
}
