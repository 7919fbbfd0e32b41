package sim

// wgmmaState is the warp's part in a warpgroup's matrix operations.
type wgmmaState struct{}
