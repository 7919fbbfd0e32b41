// Package golden holds tests of the whole way from a spec to CUDA text: one file of testdata a case, with the spec and what every
// stage makes of it, so that a change of the planner or of a template shows what it changes. Properties of the compiled code are
// asserted, never compared: PTX differs between compilers, and times between runs.
package golden
