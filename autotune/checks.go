package autotune

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
)

// checkers are children that check kernels side by side while nothing is timed: a check is mostly float64 on one processor.
type checkers struct{ hosts []*measure.Host }

// newCheckers makes n hosts like one; their children start when they are needed. Fewer than two are none.
func newCheckers(like *measure.Host, n int) *checkers {
	c := &checkers{}
	for i := 0; n >= 2 && i < n; i++ {
		c.hosts = append(c.hosts, &measure.Host{Command: like.Command, Timeout: like.Timeout})
	}
	return c
}

func (c *checkers) close() {
	for _, h := range c.hosts {
		h.Close()
	}
}

// running counts the children that are there.
func (c *checkers) running() (n int) {
	for _, h := range c.hosts {
		if h.Running() {
			n++
		}
	}
	return n
}

// fewAtOnce children have room for the tens of gigabytes that a case far apart maps, beside the buffers of the one that measures, on a GPU of
// 141 GB.
const fewAtOnce = 2

// do answers requests that time nothing, as many at once as there are checkers; without any, one after the other on the given host. The
// children live as long as ctx. A case maps tens of gigabytes, which children side by side may leave no room for: what found none is asked
// again by few, and then by one that has the device for itself.
func (c *checkers) do(ctx context.Context, alone *measure.Host, requests []measure.Request) ([]measure.Response, error) {
	hosts := c.hosts
	if len(hosts) == 0 {
		hosts = []*measure.Host{alone}
	}
	responses := make([]measure.Response, len(requests))
	return responses, askAgain(responses, func(at []int, try int) error {
		working := hosts
		switch try {
		case 1:
			working = hosts[:min(fewAtOnce, len(hosts))]
		case 2:
			working = hosts[:1]
			alone.Close()
			c.close()
		}
		return side(ctx, working, requests, responses, at)
	})
}

// side answers the requests at some places side by side.
func side(ctx context.Context, hosts []*measure.Host, requests []measure.Request, responses []measure.Response, at []int) error {
	next := make(chan int, len(at))
	for _, i := range at {
		next <- i
	}
	close(next)
	var working errgroup.Group
	for _, h := range hosts[:min(len(hosts), len(at))] {
		working.Go(func() (err error) {
			for i := range next {
				if responses[i], err = h.Do(ctx, requests[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return working.Wait()
}

// tries is how often what finds no memory is asked in all.
const tries = 3

// askAgain has everything answered, and then what found no memory again. ask answers the requests at some places, in ways that leave each try
// more room.
func askAgain(responses []measure.Response, ask func(at []int, try int) error) error {
	at := make([]int, len(responses))
	for i := range at {
		at[i] = i
	}
	for try := 0; try < tries && len(at) > 0; try++ {
		if err := ask(at, try); err != nil {
			return err
		}
		at = slices.DeleteFunc(at, func(i int) bool {
			r := responses[i]
			return r.Class != string(store.LaunchError) || !strings.Contains(r.Message, "CUDA_ERROR_OUT_OF_MEMORY")
		})
	}
	return nil
}

// found is what a check ahead of its trial came to, and the kernel's part of the time that it took.
type found struct {
	response measure.Response
	seconds  float64
}

// checkAhead checks the kernels of the jobs that are dealt and compiled by now, when that of the next one is unknown. A kernel that does not
// compile is left to its trial.
func (s *session) checkAhead(ctx context.Context, queue []job, next int) error {
	if len(s.checkers.hosts) == 0 || s.checked(queue[next]) {
		return nil
	}
	var keys []string
	var requests []measure.Request
	start, seen := time.Now(), map[string]bool{}
	for i, j := range queue {
		key := kernelOf(j.candidate())
		if seen[key] || s.checked(j) || i != next && !s.compiled.ready(j) {
			continue
		}
		seen[key] = true
		src, err := j.source()
		if err != nil {
			return err
		}
		m, err := s.compiled.Get(ctx, src)
		if err != nil {
			continue
		}
		keys = append(keys, key)
		requests = append(requests, measure.Request{Spec: *s.Spec, Work: j.list.work, Workload: j.list.workload, Candidate: j.candidate(),
			Image: imageOf(j.candidate(), m), CheckOnly: true, CheckSeed: uint64(time.Now().UnixNano())})
	}
	if len(requests) < 2 {
		return nil
	}
	responses, err := s.checkers.do(ctx, s.Host, requests)
	for i, key := range keys {
		s.found[key] = found{responses[i], time.Since(start).Seconds() / float64(len(keys))}
	}
	return err
}

func (s *session) checked(j job) bool {
	key := kernelOf(j.candidate())
	_, right := s.right[key]
	_, ahead := s.found[key]
	return right || ahead
}

// vetWinners checks the winners of points in every case, and condemns those that are found wrong. It returns the points of these.
func (s *session) vetWinners(ctx context.Context, lists []*list) (again []*list, err error) {
	winners := map[*list]store.Trial{}
	var keys []string
	var requests []measure.Request
	start, asked := time.Now(), map[string]bool{}
	for _, l := range lists {
		c, ok := choose(l.trials)
		if !ok {
			continue
		}
		winners[l] = c.Best
		key := kernelOf(c.Best.Candidate)
		if _, known := s.vet[key]; known || asked[key] {
			continue
		}
		asked[key] = true
		src, err := job{list: l, index: indexOf(l, c.Best)}.source()
		if err != nil {
			return nil, err
		}
		m, err := s.compiled.Get(ctx, src)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
		requests = append(requests, measure.Request{Spec: *s.Spec, Work: l.work, Workload: l.workload, Candidate: c.Best.Candidate,
			Image: imageOf(c.Best.Candidate, m), Thorough: true, CheckSeed: uint64(time.Now().UnixNano())})
	}
	responses, err := s.checkers.do(ctx, s.Host, requests)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		s.vet[key] = responses[i]
	}
	seconds := time.Since(start).Seconds()
	s.spent += seconds
	if err := s.DB.Spend(ctx, s.run, seconds); err != nil {
		return nil, err
	}
	for _, l := range lists {
		if t, ok := winners[l]; ok {
			right, err := s.vetted(ctx, l, t)
			if err != nil {
				return nil, err
			}
			if !right {
				again = append(again, l)
			}
		}
	}
	return again, nil
}
