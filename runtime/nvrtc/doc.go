// Package nvrtc compiles rendered CUDA sources with NVIDIA's runtime compiler: it finds the toolchain, loads it without cgo, turns
// a render.Source into a Module (PTX, cubin, log, resources) and keeps modules in a content-addressed cache on disk. It needs no
// GPU and no driver.
//
// NVRTC is loaded once a process. Compile may be called from many goroutines at once; see Compiler for what that gains.
package nvrtc
