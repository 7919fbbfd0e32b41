//go:build !cgo

package nvml

import (
	"errors"
	"testing"
)

func TestOpenWithoutCgo(t *testing.T) {
	if _, err := Open(); !errors.Is(err, ErrNoCgo) {
		t.Errorf("error %v: want ErrNoCgo", err)
	}
}
