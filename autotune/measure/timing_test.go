package measure

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTiming(t *testing.T) {
	with := func(change func(*Timing)) Timing {
		t := Usual
		change(&t)
		return t
	}
	tests := []struct {
		name string
		r    Request
		want Timing
	}{
		{"a first trial", Request{}, Usual},
		{"a later one is cut", Request{BestUS: 5}, with(func(t *Timing) { t.CutUS = 15 })},
		{"coarse", Request{Precision: 0.02}, with(func(t *Timing) { t.Width, t.Least, t.GraphUS = 0.02, coarseLeast, Usual.GraphUS/2 })},
		{"fine", Request{Precision: 0.001}, with(func(t *Timing) { t.Width = 0.001 })},
		{"a round of a contest is short and never cut", Request{Samples: 5, BestUS: 5, Precision: 0.02},
			with(func(t *Timing) { t.Least, t.Most, t.GraphUS = 5, 5, Usual.GraphUS/2 })},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, tt.r.timing()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}
