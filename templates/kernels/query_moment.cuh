// query_moment: S = sum of q q^T over a prompt's queries, for each KV head over the query heads of its group.
//
// A split takes every splits-th tile of 64 queries and has a sum of its own, which no other block touches: the same queries give the same
// bits. Q^T Q is an mma whose operands are both the tile as it lies in shared memory, read transposed; products of 16-bit queries are exact
// and sums f32. A warp has 16 rows of S.
#pragma once

#include "kernels/page_summary_exact.cuh"
#include "kvloom/abi_query.cuh"
#include "kvloom/mma/m16n8k16.cuh"

namespace kvloom {

template <int HEAD_DIM, class T>
struct MomentTile {
  using Rows = PageRows<HEAD_DIM>;  // of 16 queries
  static constexpr int kQueries = 64, kStageBytes = kQueries / 16 * Rows::kBytes;
  static constexpr int kWarps = HEAD_DIM / 16;
  static constexpr int kParts = HEAD_DIM > 192 ? 4 : HEAD_DIM > 128 ? 2 : 1, kColumns = HEAD_DIM / kParts;  // columns of S a block, as registers allow

  // Starts loading tile `tile` of a request's queries, whose rows are (token, query head of the group); zeros past the last.
  static __device__ __forceinline__ void fetch(const QueryMomentArgs& args, uint8_t* stage, int request, int head, int64_t tile, int64_t rows) {
    constexpr int kChunks = HEAD_DIM / 8;
    for (int i = threadIdx.x; i < kQueries * kChunks; i += kWarps * 32) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int64_t query = tile * kQueries + row, token = query / args.group;
      const T* from = static_cast<const T*>(args.q) + request * args.q_batch_stride + token * args.q_token_stride +
                      (head * args.group + query % args.group) * args.q_head_stride + chunk * 8;
      const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(stage + row / 16 * Rows::kBytes + Rows::chunk(row % 16, chunk)));
      ptx::copy16_or_zero(to, query < rows ? from : static_cast<const T*>(args.q), query < rows);
    }
    ptx::commit_copies();
  }
};

// Grid: x shares the splits, y the KV heads, z the parts of the columns. Any grid of that depth is right.
template <int HEAD_DIM, class T, int kSharedBytes>
__device__ __forceinline__ void query_moment(const QueryMomentArgs& args) {
  using Tile = MomentTile<HEAD_DIM, T>;
  using Rows = PageRows<HEAD_DIM>;
  static_assert(2 * Tile::kStageBytes == kSharedBytes, "two stages");
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const int first = blockIdx.z * Tile::kColumns;
#pragma unroll 1
  for (int head = blockIdx.y; head < args.kv_heads; head += gridDim.y) {
#pragma unroll 1
    for (int split = blockIdx.x; split < args.splits; split += gridDim.x) {
      float acc[Tile::kColumns / 8][4] = {};
#pragma unroll 1
      for (int request = 0; request < args.batch; request++) {
        const int64_t rows = static_cast<int64_t>(max(args.q_lens[request], 0)) * args.group, tiles = (rows + Tile::kQueries - 1) / Tile::kQueries;
        int stage = 0;
        if (split < tiles) Tile::fetch(args, shared, request, head, split, rows);
#pragma unroll 1
        for (int64_t tile = split; tile < tiles; tile += args.splits, stage ^= 1) {
          if (tile + args.splits < tiles) {
            Tile::fetch(args, shared + (stage ^ 1) * Tile::kStageBytes, request, head, tile + args.splits, rows);
            ptx::wait_copies<1>();
          } else {
            ptx::wait_copies<0>();
          }
          __syncthreads();
#pragma unroll 1
          for (int k = 0; k < Tile::kQueries / 16; k++) {
            const uint8_t* keys = shared + stage * Tile::kStageBytes + k * Rows::kBytes;
            // Rows of A are dims: matrices 0 and 1 are its dims 0-7 and 8-15 of queries 0-7, 2 and 3 of queries 8-15.
            const ptx::Matrices4 a = ptx::ldmatrix4_transposed(
                static_cast<uint32_t>(__cvta_generic_to_shared(keys + Rows::chunk(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2))));
#pragma unroll
            for (int n = 0; n < Tile::kColumns / 16; n++) {
              const ptx::Matrices4 b = ptx::ldmatrix4_transposed(
                  static_cast<uint32_t>(__cvta_generic_to_shared(keys + Rows::chunk(lane % 16, first / 8 + 2 * n + lane / 16))));
              mma_m16n8k16(acc[2 * n], a.m[0], a.m[1], a.m[2], a.m[3], b.m[0], b.m[1], T{});
              mma_m16n8k16(acc[2 * n + 1], a.m[0], a.m[1], a.m[2], a.m[3], b.m[2], b.m[3], T{});
            }
          }
          __syncthreads();  // the stage is read
        }
      }
      float* out = args.moments + ((static_cast<int64_t>(split) * args.kv_heads + head) * HEAD_DIM + warp * 16 + g) * HEAD_DIM + first + 2 * p;
#pragma unroll
      for (int n = 0; n < Tile::kColumns / 8; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float2* at = reinterpret_cast<float2*>(out + half * 8 * HEAD_DIM + n * 8);
          const float2 before = *at;
          *at = make_float2(before.x + acc[n][2 * half], before.y + acc[n][2 * half + 1]);
        }
      }
    }
  }
}

}  // namespace kvloom
