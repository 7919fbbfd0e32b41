//go:build unix

package store

import (
	"errors"
	"os"
	"syscall"
)

func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err == nil {
		_ = f.Chmod(0o666) //nolint:errcheck // of another user: it has that mode already
	}
	return f, err
}

func tryLock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errHeld
	}
	return err
}
