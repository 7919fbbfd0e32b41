// Package wholefile writes files that readers see whole or not at all.
package wholefile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write puts the data into a file that everyone may read, in place of an older one: a temporary file beside it, fsync, rename. An error names
// the file, and leaves what was there.
func Write(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return naming(path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = errors.Join(f.Chmod(0o644), f.Sync())
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // its own error would hide the first
		return naming(path, err)
	}
	return nil
}

// naming puts the file's name in the place of the temporary one's.
func naming(path string, err error) error {
	var p *os.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		err = p.Err
	case errors.As(err, &l):
		err = l.Err
	}
	return &os.PathError{Op: "write", Path: path, Err: err}
}
