// drop_compact: gathers the kept tokens of each head to the front of a cache: keys, values and positions, with lengths a head.
//
// In place, one block serves a head and goes up its list chunk by chunk: reads, a barrier, writes. Lists ascend, so entry i comes
// from token i or a later one, and what is written is never read afterwards. The target's table then has the source's own block for
// a page or one that the source does not use; that is the caller's to see to, who knows which blocks are shared.
#pragma once

#include "kvloom/drop/tokens.cuh"
#include "kvloom/ptx/dependent_launch.cuh"

namespace kvloom {

// kEach: 16-byte pieces of K and of V that a thread moves at once.
template <int HEAD_DIM, int PAGE, typename T, int kThreads, int kEach, bool kDependent>
__device__ __forceinline__ void drop_compact(const DropCompactArgs& args) {
  using namespace drop;
  static_assert(HEAD_DIM * sizeof(T) % 16 == 0, "rows are whole 16-byte pieces");
  constexpr int kPieces = HEAD_DIM * sizeof(T) / 16, kChunk = kThreads * kEach;
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int kv_head = blockIdx.y, kv_heads = gridDim.y, request = blockIdx.z;
  const int64_t head = static_cast<int64_t>(request) * kv_heads + kv_head;
  const int count = min(max(args.counts[head], 0), args.slots);
  const int blocks = args.in_place ? 1 : gridDim.x;
  if (static_cast<int>(blockIdx.x) >= blocks) return;

  const Tokens<PAGE> from(args.source, request, length_of<PAGE>(args.source, request));
  // Every slot that the target has room for may be written; its seq_lens are written here, not read.
  const int64_t room = static_cast<int64_t>(args.target.max_pages) * PAGE;
  const Tokens<PAGE> to(args.target, request, static_cast<int>(room < args.slots ? room : args.slots));
  const HeadRows<T> from_k = keys_of<T>(args.source, kv_head), from_v = values_of<T>(args.source, kv_head);
  const HeadRows<T> to_k = keys_of<T>(args.target, kv_head), to_v = values_of<T>(args.target, kv_head);
  const int64_t list = request * args.index_batch_stride + kv_head * args.index_head_stride;
  const int32_t* const indices = args.indices + list;
  const int64_t pieces = static_cast<int64_t>(count) * kPieces;
  for (int64_t chunk = static_cast<int64_t>(blockIdx.x) * kChunk; chunk < pieces; chunk += static_cast<int64_t>(blocks) * kChunk) {
    uint4 k[kEach], v[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t piece = chunk + i * kThreads + threadIdx.x;
      k[i] = v[i] = make_uint4(0, 0, 0, 0);
      if (piece >= pieces) continue;
      const Place at = from.place(indices[piece / kPieces]);
      if (!at.live) continue;
      k[i] = reinterpret_cast<const uint4*>(from_k.row(at))[piece % kPieces];
      v[i] = reinterpret_cast<const uint4*>(from_v.row(at))[piece % kPieces];
    }
    if (args.in_place) __syncthreads();  // nothing of the chunk is overwritten before all of it was read
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t piece = chunk + i * kThreads + threadIdx.x;
      if (piece >= pieces) continue;
      const Place at = to.place(static_cast<int>(piece / kPieces));
      if (!at.live) continue;
      reinterpret_cast<uint4*>(const_cast<T*>(to_k.row(at)))[piece % kPieces] = k[i];
      reinterpret_cast<uint4*>(const_cast<T*>(to_v.row(at)))[piece % kPieces] = v[i];
    }
  }
  if (args.positions) {
    const int32_t* const old = args.positions_in ? args.positions_in + request * args.position_batch_stride + kv_head * args.position_head_stride : nullptr;
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < args.slots; i += blocks * kThreads)
      args.positions[list + i] = i >= count ? -1 : old ? old[indices[i]] : indices[i];
  }
  if (blockIdx.x > 0) return;
  if (threadIdx.x == 0) args.head_lens[head] = count;
  if (kv_head > 0) return;
  int longest = 0;
  for (int h = 0; h < kv_heads; ++h) longest = max(longest, min(max(args.counts[static_cast<int64_t>(request) * kv_heads + h], 0), args.slots));
  if (threadIdx.x == 0) args.seq_lens[request] = longest;
  if (args.table) {
    const int used = (longest + PAGE - 1) / PAGE;
    for (int page = threadIdx.x; page < args.target.max_pages; page += kThreads)
      args.table[request * args.table_stride + page] = page < used ? args.target.block_table[request * args.target.table_stride + page] : -1;
  }
}

}  // namespace kvloom
