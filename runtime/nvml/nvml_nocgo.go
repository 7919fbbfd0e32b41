//go:build !cgo

package nvml

// Library cannot exist in a build without cgo: Open always fails, so its methods are never reached.
type Library struct{}

// Open answers ErrNoCgo.
func Open() (*Library, error) { return nil, ErrNoCgo }

// Close answers ErrNoCgo.
func (*Library) Close() error { return ErrNoCgo }

// Count answers ErrNoCgo.
func (*Library) Count() (int, error) { return 0, ErrNoCgo }

// ByIndex answers ErrNoCgo.
func (*Library) ByIndex(int) (Status, error) { return Status{}, ErrNoCgo }

// ByUUID answers ErrNoCgo.
func (*Library) ByUUID(string) (Status, error) { return Status{}, ErrNoCgo }
