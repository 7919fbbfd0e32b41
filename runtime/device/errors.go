package device

import "errors"

// ErrNoTimes is returned by devices that cannot measure time.
var ErrNoTimes = errors.New("this device measures no times: the simulator executes, it does not time")

// Unavailable is the typed answer of a backend that cannot work here, with the remedy for a person.
type Unavailable struct {
	What   string // "CUDA driver"
	Reason string // "libcuda.so.1 not found"
	Remedy string // "install the NVIDIA driver 580 or newer, or use --device sim"
}

func (u *Unavailable) Error() string { return u.What + ": " + u.Reason + "; " + u.Remedy }
