package devices

import (
	"errors"
	"slices"

	"github.com/kvloom/kvloom/runtime/device"
)

// replays of a sample, and samples, of ReplayUS.
const replays, replaySamples = 50, 15

// ReplayUS is the median microseconds of one replay of a graph with warm caches; 0 on a device that measures no times, which does not run it.
func ReplayUS(dev device.Device, stream device.Stream, g device.Graph) (us float64, err error) {
	if dev.Info().Backend == "sim" {
		return 0, nil
	}
	begin, err := dev.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, begin.Destroy()) }()
	end, err := dev.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end.Destroy()) }()
	var times []float64
	for range replaySamples {
		if err := stream.Record(begin); err != nil {
			return 0, err
		}
		for range replays {
			if err := g.Launch(stream); err != nil {
				return 0, err
			}
		}
		if err := errors.Join(stream.Record(end), end.Synchronize()); err != nil {
			return 0, err
		}
		ms, err := end.Since(begin)
		if errors.Is(err, device.ErrNoTimes) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		times = append(times, ms*1000/replays)
	}
	slices.Sort(times)
	return times[replaySamples/2], nil
}
