package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// DeviceLock is the right to measure on one GPU of this machine. The operating system lets go of it when its process ends, however it
// ends.
type DeviceLock struct{ file *os.File }

// Holder is who has a GPU.
type Holder struct {
	PID   int       `json:"pid"`
	Doing string    `json:"doing"` // "kvloom tune llama-3.1-8b"
	Since time.Time `json:"since"`
}

// BusyError says that another process measures on the GPU.
type BusyError struct {
	UUID   string
	Holder Holder
}

func (e *BusyError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("another process tunes GPU %s; two at once would measure each other: wait for it, or use --wait", e.UUID)
	}
	return fmt.Sprintf("%s (pid %d, since %s) tunes GPU %s; two at once would measure each other: wait for it, or use --wait",
		e.Holder.Doing, e.Holder.PID, e.Holder.Since.Local().Format("15:04:05"), e.UUID)
}

// LockFolder is where the lock files of this machine lie, one a GPU. All users of a machine share it.
func LockFolder() string { return filepath.Join(os.TempDir(), "kvloom-locks") }

// LockDevice takes the lock of a GPU for a process doing something. When another has it, it waits until wait has passed or ctx ends, and
// then returns a *BusyError that names the other. heard is called once when waiting begins.
func LockDevice(ctx context.Context, folder, uuid, doing string, wait time.Duration, heard func(*BusyError)) (*DeviceLock, error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, fmt.Errorf("lock GPU %s: %w", uuid, err)
	}
	_ = os.Chmod(folder, 0o777|os.ModeSticky) //nolint:errcheck // of another user: it has that mode already
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == os.PathSeparator {
			return '-'
		}
		return r
	}, uuid)
	f, err := openLock(filepath.Join(folder, name+".lock"))
	if err != nil {
		return nil, fmt.Errorf("lock GPU %s: %w", uuid, err)
	}
	deadline := time.Now().Add(wait)
	for told := false; ; {
		err := tryLock(f)
		if err == nil {
			break
		}
		if !errors.Is(err, errHeld) {
			return nil, errors.Join(fmt.Errorf("lock GPU %s: %w", uuid, err), f.Close())
		}
		busy := &BusyError{UUID: uuid, Holder: holderOf(f)}
		if !time.Now().Before(deadline) {
			return nil, errors.Join(busy, f.Close())
		}
		if !told && heard != nil {
			told = true
			heard(busy)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(min(200*time.Millisecond, time.Until(deadline)+time.Millisecond)):
		}
	}
	b, err := json.Marshal(Holder{PID: os.Getpid(), Doing: doing, Since: time.Now()})
	if err == nil {
		err = errors.Join(f.Truncate(0), writeAt(f, b))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock GPU %s: %w", uuid, err), f.Close())
	}
	return &DeviceLock{f}, nil
}

func writeAt(f *os.File, b []byte) error {
	_, err := f.WriteAt(b, 0)
	return err
}

func holderOf(f *os.File) (h Holder) {
	b := make([]byte, 4096)
	n, _ := f.ReadAt(b, 0)
	_ = json.Unmarshal(b[:n], &h) // one that is just being written names nobody
	return h
}

// Release lets the next process have the GPU. The file stays: removing it would let two processes lock two files.
func (l *DeviceLock) Release() error { return errors.Join(l.file.Truncate(0), l.file.Close()) }

var errHeld = errors.New("held by another process")
