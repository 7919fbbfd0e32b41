// Deals tiles of pages out to warps, sized by the lengths that stand in device memory when the kernel runs.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// One tile of one request for one unit (a kv head, or a part of its query heads).
struct TileTask {
  int request, unit, tile;
  int pages;  // complete pages of the request, at most max_pages
  int tail;   // tokens of the page that is still filling; 0 where there is none. Its task is the tile after the last
};

// Walks the tasks first, first + stride, first + 2 stride, ... of the list [request][tile][unit], unit fastest. Requests are
// taken 32 at a time, one a lane, so that dead ones cost a share of one scan. With stride a multiple of units a warp keeps its
// unit. All lanes of the warp call together.
template <int PAGE, int TILE>
class TileTasks {
 public:
  __device__ __forceinline__ TileTasks(const int32_t* seq_lens, int batch, int units, int max_pages, uint32_t first, uint32_t stride)
      : seq_lens_(seq_lens), batch_(batch), units_(units), max_pages_(max_pages), index_(first), stride_(stride) {
    scan();
  }

  __device__ __forceinline__ bool next(TileTask& t) {
    while (true) {
      const uint32_t ahead = __ballot_sync(0xffffffffu, index_ < upto_);
      if (ahead != 0) {
        const int lane = __ffs(ahead) - 1;
        const int length = __shfl_sync(0xffffffffu, length_, lane);
        const uint32_t rest = index_ - __shfl_sync(0xffffffffu, before_, lane);
        t.request = base_ + lane;
        t.tile = static_cast<int>(rest / units_);
        t.unit = static_cast<int>(rest - t.tile * units_);
        split(length, t.pages, t.tail);
        index_ += stride_;
        return true;
      }
      index_ -= __shfl_sync(0xffffffffu, upto_, 31);
      base_ += 32;
      if (base_ >= batch_) return false;
      scan();
    }
  }

 private:
  __device__ __forceinline__ void split(int length, int& pages, int& tail) const {
    pages = length > 0 ? length / PAGE : 0;
    tail = length > 0 ? length % PAGE : 0;
    if (pages >= max_pages_) pages = max_pages_, tail = 0;
  }

  __device__ __forceinline__ void scan() {
    const int lane = threadIdx.x % 32;
    length_ = base_ + lane < batch_ ? __ldg(seq_lens_ + base_ + lane) : 0;
    int pages, tail;
    split(length_, pages, tail);
    const uint32_t mine = static_cast<uint32_t>((pages + TILE - 1) / TILE + (tail > 0 ? 1 : 0)) * units_;
    upto_ = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(0xffffffffu, upto_, step);
      if (lane >= step) upto_ += below;
    }
    before_ = upto_ - mine;
  }

  const int32_t* seq_lens_;
  int batch_, units_, max_pages_;
  uint32_t index_, stride_;
  int base_ = 0;      // request of lane 0
  int length_;        // this lane's request
  uint32_t before_, upto_;  // its tasks are [before, upto) of the 32 requests'
};

}  // namespace kvloom
