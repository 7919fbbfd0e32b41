// Package reference computes in float64, straight from the paper and the contracts, what every kernel of kvloom is checked against:
// page summaries, the page score of equation 2, the combine rules, the choice of pages and the attention over them.
//
// Nothing here is derived from a kernel. Where the contracts leave a corner open, the function's comment says what it means here.
// Shapes are written [outer, ..., inner]; vectors of numbers are []float64, caches hold the 16-bit patterns that devices hold.
package reference

import (
	"runtime"
	"sync"
)

// parallel calls f(0) ... f(n-1), each once, on as many goroutines as there are processors.
func parallel(n int, f func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
