// page_summary of the few pages that filled in a decode step: a team of two warps builds one, with a basis that takes a fraction of the
// time of eigenvectors one after the other (linalg/power16.cuh). What page_summary_tridiagonal.cuh does with four pages a warp is made
// for prompts, where other warps hide a chain of some ten thousand cycles. Here nothing hides it.
//
// Each warp of a team has half of the dims, from the keys to the record; both find the basis, which is quicker than to wait for it. They
// meet three times: for the sum of their Gram matrices, for the largest elements of V and the centroid, and before the record is copied.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kernels/page_summary_exact.cuh"
#include "kernels/page_summary_quick.cuh"
#include "kvloom/linalg/power16.cuh"
#include "kvloom/ptx/grid.cuh"
#include "kvloom/ptx/load.cuh"

namespace kvloom {

// Build: TridiagonalBuild, of whose memory for kNumWarps warps this takes its own.
template <class Build, int HEAD_DIM, int RANK, int BITS, class T, int kNumWarps>
struct FewPages {
  using Key = typename Compute<T>::type;
  using Layout = Record<HEAD_DIM, 16, RANK, BITS>;
  using Rows = PageRows<HEAD_DIM>;
  using Exact = ExactPage<HEAD_DIM, RANK, BITS, T>;
  using Power = Power16<RANK>;
  static constexpr int kTeam = kNumWarps % 2 == 0 ? 2 : 1, kTeams = kNumWarps / kTeam;
  static constexpr int kSteps = HEAD_DIM / 16, kOwn = (kSteps + kTeam - 1) / kTeam;  // of 16 dims; a warp's, the last of which may not exist
  static constexpr int kTiles = 2 * kOwn;                                            // of 8 dims, a warp's

  // A team's memory: keys, V and mu as the record has them, then of each warp the matrix it works on, what it keeps, its share of the
  // Gram matrix and its largest elements.
  static constexpr int kImageAt = Rows::kBytes, kWarpAt = kImageAt + (Layout::kC + 15) / 16 * 16;
  static constexpr int kKept = Power::kMatrixBytes, kShare = kKept + Power::kBytes, kTops = kShare + 1024, kOwnBytes = kTops + 64;
  static constexpr int kShortRow = 1024;  // pages of a table's row, 4 KB of which are fetched before they are needed
  // Bases of 16 bits show that flat spectra lose 0.1 % of their energy, some pages 1 %.
  static constexpr bool kFits = kWarpAt + kTeam * kOwnBytes <= kTeam * Build::kWarpBytes && BITS < 16;

  uint8_t* page;  // the team's memory
  int lane, role, team;
  float key_scale;  // of the cache

  __device__ __forceinline__ uint8_t* own(int role) const { return page + kWarpAt + role * kOwnBytes; }
  __device__ __forceinline__ float* tops(int role) const { return reinterpret_cast<float*>(own(role) + kTops); }  // [8] of V's rows, of the centroid
  __device__ __forceinline__ bool has(int step) const { return kSteps % kTeam == 0 || role * kOwn + step < kSteps; }

  // Waits for the other warp.
  __device__ __forceinline__ void meet() const {
    if (kTeam == 1) __syncwarp();
    else ptx::named_barrier(1 + team, 64);
  }

  // Starts loading this warp's dims.
  __device__ __forceinline__ void fetch(const KvCache& cache, int64_t offset, bool aligned) const {
    constexpr int kChunks = 2 * kOwn;  // of 8 dims in a row
    const auto from = static_cast<const typename KeyBits<T>::type*>(cache.k) + offset;
#pragma unroll
    for (int i = 0; i < kChunks / 2; i++) {
      const int at = i * 32 + lane, row = at / kChunks, chunk = role * kChunks + at % kChunks;
      if (kSteps % kTeam == 0 || chunk < 2 * kSteps) copy_keys(page + Rows::chunk(row, chunk), from + row * cache.k_token_stride + chunk * 8, aligned);
    }
    ptx::commit_copies();
  }

  // The Gram matrix of the page's keys: this warp's dims in two chains, and the other's.
  __device__ __forceinline__ Square16 gram() const {
    Square16 even{}, odd{};
#pragma unroll
    for (int k = 0; k < kOwn; k++) {
      if (!has(k)) break;
      uint32_t r[4];
      load_tile(r, page + Rows::tile(lane, role * kOwn + k));
      Square16& acc = k % 2 ? odd : even;
      mma_m16n8k16(acc.left, r[0], r[1], r[2], r[3], r[0], r[2], Key{});
      mma_m16n8k16(acc.right, r[0], r[1], r[2], r[3], r[1], r[3], Key{});
    }
#pragma unroll
    for (int i = 0; i < 4; i++) even.left[i] += odd.left[i], even.right[i] += odd.right[i];
    if constexpr (kTeam == 2) {
      float4* mine = reinterpret_cast<float4*>(own(role) + kShare) + lane;
      mine[0] = make_float4(even.left[0], even.left[1], even.left[2], even.left[3]);
      mine[32] = make_float4(even.right[0], even.right[1], even.right[2], even.right[3]);
      meet();
      const float4* other = reinterpret_cast<const float4*>(own(1 - role) + kShare) + lane;
      const float4 x = other[0], y = other[32];
      even.left[0] += x.x, even.left[1] += x.y, even.left[2] += x.z, even.left[3] += x.w;
      even.right[0] += y.x, even.right[1] += y.y, even.right[2] += y.z, even.right[3] += y.w;
    }
    return even;
  }

  // Centres a Gram matrix. Returns its trace before that, and 16 times the centroid's squared length.
  __device__ __forceinline__ float2 centre(Square16& m) const {
    const int p = lane % 4;
    float energy = Power::diagonal(m, lane), low = m.left[0] + m.left[1] + (m.right[0] + m.right[1]), high = m.left[2] + m.left[3] + (m.right[2] + m.right[3]);
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      energy += __shfl_xor_sync(~0u, energy, mask);
      low += __shfl_xor_sync(~0u, low, mask);
      high += __shfl_xor_sync(~0u, high, mask);
    }
    float total = low + high;
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      energy += __shfl_xor_sync(~0u, energy, mask);
      total += __shfl_xor_sync(~0u, total, mask);
    }
    const float centroid = total * (1.f / 16), mean = total * (1.f / 256);
    low *= 1.f / 16, high *= 1.f / 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {  // columns 2 p + i are row sums of lanes 4 (2 p + i)
      const float left = __shfl_sync(~0u, low, 8 * p + 4 * i) - mean, right = __shfl_sync(~0u, high, 8 * p + 4 * i) - mean;
      m.left[i] -= low + left, m.left[2 + i] -= high + left;
      m.right[i] -= low + right, m.right[2 + i] -= high + right;
    }
    return make_float2(energy, centroid);
  }

  __device__ __forceinline__ Power power() const {
    Power power;
    power.lane = lane;
    power.work = reinterpret_cast<float*>(own(role));
    power.kept = reinterpret_cast<float*>(own(role) + kKept);
    return power;
  }

  // Builds a page whose keys are there. Keys that lie close together far from 0, are very large or small, or not finite go
  // page_summary_exact.cuh's way, by the first warp.
  __device__ __forceinline__ void build(const PageSummaryArgs& args, int64_t record) const {
    ptx::wait_copies<0>();
    __syncwarp();
    Square16 m = gram();
    float2 e = centre(m);
    Power power;
    power.lane = lane;
    power.work = reinterpret_cast<float*>(own(role));
    power.kept = reinterpret_cast<float*>(own(role) + kKept);
    const Exact exact{page, opaque(lane), key_scale};
    float root = 1.f, up = key_scale;
    const bool careful = !Build::plain(e.x, e.y);
    if (__builtin_expect(careful, 0)) {
      float* shared = tops(0);
      if (role == 0) {
        const PageScale scale = exact.power();
        shared[0] = exact.gram(power.work, scale), shared[1] = scale.up;
      }
      meet();
      root = shared[0], up = shared[1];
      m = power.load(reinterpret_cast<float*>(own(0)), rcp_approx(root * root));  // a power of 4, and so is its reciprocal
      meet();
      e = centre(m);
    }
    power.run(m, e.x - e.y);
    float over[RANK];
#pragma unroll
    for (int j = 0; j < RANK; j++) over[j] = power.energy[j] > 0.f ? rsqrt_approx(power.energy[j]) : 0.f;
    leave_vectors(power, over);
    uint8_t* out = args.summaries + record;
    if (!careful) basis(out, over);
    if (role == kTeam - 1) coefficients(power, over, root, up, out);
    if (__builtin_expect(careful, 0)) {
      if (role != 0) return;
#pragma unroll
      for (int j = 0; j < RANK; j++) tops(0)[j] = power.energy[j] * over[j] * root;
      __syncwarp();
      exact.template basis<false>(out, power.work, tops(0));
      return;
    }
    meet();  // the image is whole
    for (int unit = role * 32 + lane; unit < Layout::kC / 16; unit += 32 * kTeam)
      reinterpret_cast<uint4*>(out)[unit] = reinterpret_cast<const uint4*>(page + kImageAt)[unit];
  }

  // u in shared memory, in place of the matrix.
  __device__ __forceinline__ void leave_vectors(Power& power, const float (&over)[RANK]) const {
    // What the powers' rounding left of the vector of ones would take the centroid into V. Where u is rounded to bf16 alone, basis()
    // takes it out with what that rounding adds.
    if constexpr (Build::kTwice) {
#pragma unroll
      for (int j = 0; j < RANK; j++) {
        float sum = power.x[j];
#pragma unroll
        for (int mask = 1; mask < 16; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
        power.x[j] -= sum * (1.f / 16);
      }
    }
    __syncwarp();
    if (lane < 16) {
#pragma unroll
      for (int j = 0; j < RANK; j++) power.work[vector_place(j, lane)] = over[j] > 0.f ? power.x[j] : 0.f;
    }
    __syncwarp();
  }

  // C, a token a lane of the upper 16, and its scales.
  __device__ __forceinline__ void coefficients(const Power& power, const float (&over)[RANK], float root, float up, uint8_t* out) const {
    constexpr int kPad = Layout::kRankPad;
    if (lane < 16) return;
    const int t = lane - 16;
    float c[kPad], top = 0.f;
#pragma unroll
    for (int j = 0; j < kPad; j++) {
      c[j] = j < RANK ? power.x[j < RANK ? j : 0] * (over[j < RANK ? j : 0] * root) : 0.f;
      top = fmaxf(top, fabsf(c[j]));
    }
    const KeyScale key = quick_key_scale<T, 8, true>(top, up);
    uint32_t code[kPad];
#pragma unroll
    for (int j = 0; j < kPad; j++) code[j] = round_bits(c[j], key.scale.inverse, 0);
    if constexpr (kPad == 1) out[Layout::kC + t] = static_cast<uint8_t>(code[0]);
    else Build::Image::template store_bytes<kPad>(out + Layout::kC + t * kPad, code);
    reinterpret_cast<uint16_t*>(out + Layout::kTokenScales)[t] = bf16_bits(key.scale.value > 0.f ? key.stored : 0.f);
  }

  // V and the centroid of this warp's dims into the image; all scales but the tokens' into the record.
  __device__ __forceinline__ void basis(uint8_t* out, const float (&overs)[RANK]) const {
    const int g = lane / 4, p = lane % 4, row = min(g, RANK - 1);
    const float* u = reinterpret_cast<const float*>(own(role));
    const float2 u0 = *reinterpret_cast<const float2*>(u + vector_place(row, 2 * p)), u1 = *reinterpret_cast<const float2*>(u + vector_place(row, 2 * p + 8));
    const uint32_t hi0 = pack_pair(u0.x, u0.y, Key{}), hi1 = pack_pair(u1.x, u1.y, Key{});
    const float2 r0 = unpack(hi0, Key{}), r1 = unpack(hi1, Key{});
    float acc[kTiles][4];  // elements 0, 1: V of row g times sigma; 2, 3: the centroid, in each row
#pragma unroll
    for (int k = 0; k < kOwn; k++) {
      uint32_t r[4] = {0, 0, 0, 0};
      if (has(k)) load_tile_transposed(r, page + Rows::tile(lane, role * kOwn + k));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        mma_m16n8k16_from_zero(acc[2 * k + h], hi0, sixteenths(Key{}), hi1, sixteenths(Key{}), r[2 * h], r[2 * h + 1], Key{});
        if constexpr (Build::kTwice) {
          mma_m16n8k16(acc[2 * k + h], pack_pair(u0.x - r0.x, u0.y - r0.y, Key{}), 0u, pack_pair(u1.x - r1.x, u1.y - r1.y, Key{}), 0u, r[2 * h],
                       r[2 * h + 1], Key{});
        }
      }
    }
    if constexpr (!Build::kTwice) {  // u takes in this much of the centroid, rounded
      float uneven = r0.x + r0.y + (r1.x + r1.y);
      uneven += __shfl_xor_sync(~0u, uneven, 1);
      uneven += __shfl_xor_sync(~0u, uneven, 2);
#pragma unroll
      for (int n = 0; n < kTiles; n++) acc[n][0] = fmaf(-uneven, acc[n][2], acc[n][0]), acc[n][1] = fmaf(-uneven, acc[n][3], acc[n][1]);
    }
    float top = 0.f, top_mu = 0.f;
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      top = fmaxf(top, fmaxf(fabsf(acc[n][0]), fabsf(acc[n][1])));
      top_mu = fmaxf(top_mu, fmaxf(fabsf(acc[n][2]), fabsf(acc[n][3])));
    }
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
      top_mu = fmaxf(top_mu, __shfl_xor_sync(~0u, top_mu, mask));
    }
    if constexpr (kTeam == 2) {
      if (p == 0) tops(role)[g] = top;
      if (lane == 1) tops(role)[8] = top_mu;
      meet();
      top = fmaxf(top, tops(1 - role)[g]);
      top_mu = fmaxf(top_mu, tops(1 - role)[8]);
    }
    float over = 0.f;
#pragma unroll
    for (int j = 0; j < RANK; j++) over = g == j ? overs[j] : over;
    const Scale scale = quick_scale(top * over, 1.f / largest_code<BITS>());
    const KeyScale mu_key = quick_key_scale<T>(top_mu, key_scale);
    uint8_t* image = page + kImageAt;
    const float inverse = over * scale.inverse;
    const int first = role * kTiles;
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      const int dim = 8 * (first + n) + 2 * p;
      Build::Image::put_pair(image + g * Layout::kRowBytes + Build::Image::place(dim), acc[n][0], acc[n][1], inverse, g < RANK && has(n / 2));
    }
    // The centroid's tiles are dealt to the rows.
#pragma unroll
    for (int n = 0; n < kTiles; n += 8) {
      const float2 mu = choose(acc, n, g);
      const uint32_t x = round_bits(mu.x, mu_key.scale.inverse, 0), y = round_bits(mu.y, mu_key.scale.inverse, 0);
      const int tile = n + g;
      if (tile < kTiles && first + tile < 2 * kSteps)
        *reinterpret_cast<uint16_t*>(image + Layout::kMu + 8 * (first + tile) + 2 * p) = static_cast<uint16_t>(__byte_perm(x, y, 0x0040));
    }
    if (role != 0) return;
    if constexpr (Build::Image::kPadBytes > 0) {  // zeros behind the quarters that are no whole number of words
      constexpr int kPad = Build::Image::kPadBytes;
      for (int i = lane; i < RANK * 4 * kPad; i += 32) image[(i / kPad + 1) * Layout::kQuarterBytes - kPad + i % kPad] = 0;
    }
    // The scales at the record's end: a lane a 16-bit word, zeros between and behind.
    constexpr int kFirst = Layout::kColumnScales, kWords = (Layout::kBytes - kFirst) / 2, kMuWord = (Layout::kMuScale - kFirst) / 2;
    static_assert(kWords <= 32, "a lane a word");
    float value = __shfl_sync(~0u, scale.value, lane % 8 * 4);
    if (lane >= RANK) value = 0.f;
    if (lane == kMuWord) value = mu_key.stored;
    if (lane < kWords) reinterpret_cast<uint16_t*>(out + kFirst)[lane] = bf16_bits(value);
  }

  // The centroid's elements of tile first + j, a choice among registers.
  static __device__ __forceinline__ float2 choose(const float (&acc)[kTiles][4], int first, int j) {
    float2 x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = first + i < kTiles ? make_float2(acc[first + i < kTiles ? first + i : 0][2], acc[first + i < kTiles ? first + i : 0][3]) : make_float2(0.f, 0.f);
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2) {
      const bool set = j & bit;
#pragma unroll
      for (int i = 0; i < 8; i += 2 * bit) x[i] = make_float2(set ? x[i + bit].x : x[i].x, set ? x[i + bit].y : x[i].y);
    }
    return x[0];
  }

  // The whole launch: up to 16 blocks along z share a request's (page, head) items, y has the requests; others have nothing to do.
  //
  // built_lens, a multiple of 16, counts in its low bits the blocks that have read it: reading is counting. The last one moves it. A counter
  // of its own would have to be fenced from the read, which takes a microsecond, a third of all that is done here.
  static __device__ __forceinline__ void run(const PageSummaryArgs& args, uint8_t* shared) {
    __shared__ int read;
    const KvCache& cache = args.cache;
    const int blocks = min(gridDim.z, 16);
    if (blockIdx.x > 0 || blockIdx.z >= blocks) return;
    const int thread = opaque(threadIdx.x), warp = thread / 32, team = warp / kTeam, first = blockIdx.z + team * blocks;
    FewPages few{shared + team * kTeam * Build::kWarpBytes, thread % 32, warp % kTeam, team, cache_scale<T>(cache.k_scale)};
#pragma unroll 1
    for (int request = blockIdx.y; request < cache.batch; request += gridDim.y) {
      const int64_t row = request * cache.table_stride;
      // A short row of the block table comes to L2 while the lengths are on their way.
      const int line = thread % 32 * blocks + blockIdx.z;  // of 32 pages
      if (warp == kNumWarps - 1 && cache.max_pages <= kShortRow && line * 32 < cache.max_pages) prefetch_l2(cache.block_table + row + line * 32);
      if (threadIdx.x == 0) read = atomicAdd(args.built_lens + request, 1);
      const int complete = complete_pages<16>(cache, request);
      // Where the length alone says that a page has just filled, its block is asked for before built_lens is known, and not waited for.
      const bool likely = complete > 0 && cache.seq_lens[request] % 16 == 0 && first < cache.kv_heads;
      const int guess = likely ? cache.block_table[row + complete - 1] : -1;
      const bool aligned = Build::aligned(cache);
      int item = first, page = item / cache.kv_heads, head = item - page * cache.kv_heads;
      __syncthreads();
      const int begin = max(read, 0) / 16, items = max(complete - begin, 0) * cache.kv_heads;
      if (threadIdx.x == 0 && (read & 15) == blocks - 1) atomicExch(args.built_lens + request, complete * 16);
#pragma unroll 1
      for (; item < items; item += kTeams * blocks) {
        const int64_t at = row + begin + page;
        const int of_record = likely && item == first && begin == complete - 1 ? guess : cache.block_table[at];
        // A KIVI cache has keys elsewhere.
        const int block = cache.row_table == nullptr || of_record < 0 ? of_record : cache.row_table[at];
        few.lane = opaque(thread) % 32;  // nothing is worked out before a loop that goes round once
        if (block >= 0) {
          few.fetch(cache, block * cache.k_block_stride + head * cache.k_head_stride, aligned);
          few.build(args, of_record * args.summary_block_stride + head * args.summary_head_stride);
        }
        few.meet();  // nobody reads these keys any more
        page = (item + kTeams * blocks) / cache.kv_heads, head = item + kTeams * blocks - page * cache.kv_heads;
      }
      __syncthreads();  // all have seen what was read
    }
  }
};

}  // namespace kvloom
