// How many tokens of a prompt a head keeps, as DropKV.Keep of package specs and the float64 reference say it.
#pragma once

#include "kvloom/abi_drop.cuh"

namespace kvloom::drop {

// max(ceil(ratio * n), window, 1), at most n. The factor keeps .07 x 100, which is above 7 in binary, from becoming 8. All in
// double, whose products and ceil are the host's.
__device__ __forceinline__ int uniform_budget(const DropBudget& b, int n) {
  int64_t keep = b.tokens;
  if (b.ratio > 0.0) keep = static_cast<int64_t>(ceil(__dmul_rn(__dmul_rn(b.ratio, static_cast<double>(n)), 1.0 - 1e-12)));
  if (b.layers > 0) {  // PyramidKV: budgets fall in equal whole steps over the layers
    const int64_t open = max(max(keep, static_cast<int64_t>(b.window)) - b.window, static_cast<int64_t>(0));
    int64_t low = open / 20, high = 2 * open - low;
    const int64_t all = max(n - b.window, 0);
    if (high >= all) high = all, low = 2 * open - high;
    keep = b.layers < 2 ? open : max(high - b.layer * ((high - low) / (b.layers - 1)), static_cast<int64_t>(0));
    keep += b.window;
  }
  keep = max(keep, static_cast<int64_t>(max(b.window, 1)));
  return static_cast<int>(min(keep, static_cast<int64_t>(n)));
}

// What of a head's n tokens is open to choice when it keeps `keep`: tokens [sinks, end), of which `need` are taken.
struct Open {
  int sinks, end, need;

  __device__ __forceinline__ Open(const DropBudget& b, int n, int keep) {
    end = max(n - b.window, 0);
    sinks = max(min(min(b.sinks, end), keep - (n - end)), 0);
    need = min(max(keep - (n - end) - sinks, 0), end - sinks);
  }
};

// A value as an integer that orders as values do: NaN 0, below -inf; both zeros alike.
__device__ __forceinline__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int>(bits) >> 31) | 0x80000000u);
  return value != value ? 0u : key;
}

}  // namespace kvloom::drop
