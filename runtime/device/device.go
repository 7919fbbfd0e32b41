// Package device is the small interface that both backends implement: cuda (the driver API) and sim (PTX on the CPU).
//
// A Device and everything made from it belong to one context. Methods are safe to call from several goroutines unless they say
// otherwise; Function.Launch and Stream methods run on the caller's thread and never synchronise the device.
package device

import "unsafe"

// Ptr is an address in device memory. The zero Ptr is null.
type Ptr uint64

// Info describes a device. Sizes are bytes, clocks MHz.
type Info struct {
	Backend           string `json:"backend"` // "cuda" or "sim"
	Name              string `json:"name"`
	UUID              string `json:"uuid"`
	Ordinal           int    `json:"ordinal"`
	Major             int    `json:"major"`
	Minor             int    `json:"minor"`
	SMs               int    `json:"sms"`
	L2Bytes           int64  `json:"l2_bytes"`
	MemoryBytes       int64  `json:"memory_bytes"`
	MemoryClockMHz    int    `json:"memory_clock_mhz"`
	SharedPerBlock    int    `json:"shared_per_block"` // with opt-in
	SharedPerSM       int    `json:"shared_per_sm"`
	RegistersPerSM    int    `json:"registers_per_sm"`
	ThreadsPerSM      int    `json:"threads_per_sm"`
	DriverVersion     int    `json:"driver_version"` // CUDA version of the driver, 13000 for 13.0
	DriverName        string `json:"driver_name"`    // "580.159.04" where known, else ""
	MultiInstanceGPU  bool   `json:"mig"`
	ErrorCorrectionOn bool   `json:"ecc"`
}

// Device is one GPU, or the simulator.
type Device interface {
	Info() Info
	// Alloc returns at least bytes of device memory, 256-byte aligned, contents undefined. bytes 0 is an error.
	Alloc(bytes int64) (Ptr, error)
	Free(p Ptr) error
	// Write, Read and Fill are synchronous: they return when the copy is done. They order after work on the null stream only;
	// synchronise a stream before reading what it writes.
	Write(dst Ptr, src []byte) error
	Read(dst []byte, src Ptr) error
	Fill(dst Ptr, value byte, bytes int64) error
	// Load makes a module of a cubin or of PTX text. A PTX newer than the driver, or a cubin of another architecture, is an
	// error that names both.
	Load(image []byte) (Module, error)
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// Synchronize waits for all work of the context.
	Synchronize() error
	Close() error
}

// Module is loaded code.
type Module interface {
	Function(name string) (Function, error)
	Unload() error
}

// FuncAttributes are what the compiler gave one kernel. Sizes are bytes a thread or block.
type FuncAttributes struct {
	Registers, LocalBytes, SharedBytes, MaxThreads int
	BinaryVersion, PTXVersion                      int // 90 for 9.0
}

// Function is one kernel of a module.
type Function interface {
	Name() string
	Attributes() (FuncAttributes, error)
	// SetMaxDynamicShared sets the limit of dynamic shared memory; needed once, where that and the kernel's static shared
	// memory are above 48 KB together.
	SetMaxDynamicShared(bytes int) error
	// SetNonPortableCluster allows clusters of 16.
	SetNonPortableCluster() error
	// Occupancy is how many blocks of this size fit on one SM.
	Occupancy(blockThreads, dynamicShared int) (int, error)
	// Launch enqueues the kernel. params points at size bytes laid out as the kernel's parameters are in PTX (each aligned to
	// its own size): for a kernel with one by-value struct, that struct. They are copied before Launch returns. Launch
	// allocates nothing on Go's heap and does not wait.
	Launch(s Stream, l *Launch, params unsafe.Pointer, size uintptr) error
}

// Prepare asks the driver for what a kernel's launches need beyond the usual: dynamic shared memory in bytes (asked for
// whenever there is any, since 48 KB hold the kernel's static shared memory too) and clusters of more than 8 blocks.
func Prepare(f Function, dynamicShared, cluster int) error {
	if dynamicShared > 0 {
		if err := f.SetMaxDynamicShared(dynamicShared); err != nil {
			return err
		}
	}
	if cluster > 8 {
		return f.SetNonPortableCluster()
	}
	return nil
}

// PreferShared is implemented by functions whose launches may ask for the largest share of an SM's memory as shared memory, whatever
// their blocks need: an SM holds blocks of kernels that ask for the same alone, so that those of a kernel that starts early would else wait
// until the SM is empty.
type PreferShared interface{ PreferShared() error }

// Launch is the geometry of one launch.
type Launch struct {
	Grid          [3]uint32
	Block         [3]uint32
	Cluster       [3]uint32 // {1,1,1}: no cluster
	DynamicShared uint32
	Dependent     bool // programmatic stream serialisation with the launch before it
	Cooperative   bool
	// Before is the geometry of the kernel that a function of two kernels launches first (launch.Function); else zero.
	Before struct {
		Grid, Block   [3]uint32
		DynamicShared uint32
	}
}

// Stream is an in-order queue.
type Stream interface {
	// Handle is the CUstream of the cuda backend, and an identity on sim.
	Handle() uintptr
	Synchronize() error
	Record(e Event) error
	Wait(e Event) error
	// WriteAsync and FillAsync enqueue; src must stay unchanged until the stream reaches the copy. Inside a capture the
	// source of WriteAsync is read at each replay, so prefer FillAsync and kernels there.
	FillAsync(dst Ptr, value byte, bytes int64) error
	CopyAsync(dst, src Ptr, bytes int64) error
	// BeginCapture and EndCapture turn what is enqueued between them into a graph instead of running it.
	BeginCapture() error
	EndCapture() (Graph, error)
	Destroy() error
}

// Event is a point in a stream.
type Event interface {
	// Since is the time in milliseconds from an earlier event to this one, both reached. The sim backend returns
	// ErrNoTimes: no time is ever derived from the simulator.
	Since(earlier Event) (float64, error)
	Synchronize() error
	Destroy() error
}

// Graph is an instantiated CUDA graph.
type Graph interface {
	Launch(s Stream) error
	Nodes() (int, error)
	Destroy() error
}
