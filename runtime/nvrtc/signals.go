package nvrtc

import (
	"sync"

	"github.com/ebitengine/purego"
)

// ignoreSignals is a signal(2) that changes nothing. SIG_IGN as the old handler tells NVRTC that the process wants none.
var ignoreSignals = sync.OnceValue(func() uintptr {
	const sigIgn = 1
	return purego.NewCallback(func(_ int32, _ uintptr) uintptr { return sigIgn })
})
