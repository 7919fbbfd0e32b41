package measure

import "syscall"

// childAttributes gives the child its own process group: a Ctrl-C at the terminal reaches the coordinator alone, which lets the trial
// in flight finish. A coordinator that is killed takes its child with it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
