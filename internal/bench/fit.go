package bench

import "math"

// Fit is a straight line through measured times: Intercept + Slope * x, in microseconds.
type Fit struct {
	Intercept, Slope float64
	Worst            float64 // largest relative distance of a time from the line
	N                int
}

// fitLine finds the line with the least sum of squared relative errors: times from 4K to 1M tokens span two orders of magnitude, and absolute
// errors would leave the intercept to chance. Fewer than 3 points, or points at one x, have no fit.
func fitLine(xs, us []float64) (f Fit, ok bool) {
	var w, wx, wxx, wy, wxy float64
	for i, x := range xs {
		weight := 1 / (us[i] * us[i])
		w, wx, wxx, wy, wxy = w+weight, wx+weight*x, wxx+weight*x*x, wy+weight*us[i], wxy+weight*x*us[i]
	}
	det := w*wxx - wx*wx
	if len(xs) < 3 || det <= 1e-12*w*wxx {
		return Fit{}, false
	}
	f = Fit{Intercept: (wxx*wy - wx*wxy) / det, Slope: (w*wxy - wx*wy) / det, N: len(xs)}
	for i, x := range xs {
		f.Worst = max(f.Worst, math.Abs(f.Intercept+f.Slope*x-us[i])/us[i])
	}
	return f, true
}
