//go:build !unix

package sim

import "errors"

// reserve has no sparse memory here; allocations are as large as memory allows.
func reserve(size int64) (b []byte, big bool, err error) {
	if size > 1<<34 {
		return nil, false, errors.New("allocations over 16 GB need a Unix system, whose memory is mapped as it is touched")
	}
	return aligned(size), false, nil
}

func release([]byte) error { return nil }
