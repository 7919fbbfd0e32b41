//go:build !linux

package nvrtc

// keepSignals is for Linux, where NVRTC is a shared library of ELF.
func keepSignals(uintptr, string) error { return nil }
