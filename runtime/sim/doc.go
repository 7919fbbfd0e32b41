// Package sim is the second implementation of device.Device: it executes the PTX that NVRTC made, on the CPU.
//
// A module is parsed once (package ptx) and lowered to a compact form; registers are arrays of 32 lanes, warps execute under
// active masks and reconverge at the immediate post-dominator. An instruction or modifier that the simulator does not know is an
// error of Load. Launches run to completion on the caller's goroutine and on Config.Workers goroutines. The simulator counts, it
// never times.
package sim
