//go:build !linux

package measure

import "syscall"

// childAttributes has nothing to set: elsewhere there is no GPU to tune, and the child ends when its input does.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
