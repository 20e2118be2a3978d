// A warp of the cluster kernels: its run of a row, in registers from the load to the store.

#ifndef NORMD_KERNELS_CUDA_ROWS_CLUSTER_WARP_CUH_
#define NORMD_KERNELS_CUDA_ROWS_CLUSTER_WARP_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/run_params.cuh"
#include "kernels/cuda/rows/vector_tile.cuh"
#include "kernels/cuda/rows/word_tile.cuh"

namespace normd::norm::cuda {

// Rows that are aligned, with parameters of a known kind.
template <typename T, bool kAligned, typename Params>
class ClusterWarp {
 public:
  using A = Accumulator<T>;

  // `params` is the place in shared memory of the parameters of the warp's run, or 0.
  __device__ ClusterWarp(const RowBatch& batch, const RunPlace& place, std::uint32_t params)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        params_(batch, place, params) {}

  // Loads the parameters that stay (RunElements::Fetch).
  __device__ void FetchParams() const { params_.Fetch(); }

  // Loads the run of row `index`; no bytes if there is no such row.
  __device__ void Load(std::uint32_t index) {
    run_ = Find(index);
    Ask(run_, 0, kClusterVectors);
  }

  __device__ std::int64_t row_elements() const { return run_.elements; }

  // `statistics` as SumRun's.
  template <typename AnyStatistics>
  __device__ Moments<A> Sum(AnyStatistics statistics) const {
    return MergeStatistics(statistics,
                           SumRun<T, true>(vectors_, run_.bytes, lane_, kLanes, statistics),
                           static_cast<A>(run_.bytes / static_cast<int>(sizeof(T))), kLanes);
  }

  // Loads what Finish needs, while the others' partials are in flight.
  __device__ void Prepare() { params_.Load(run_.params, run_.bytes); }

  // Scales and stores the run; loads that of row `next` in its place.
  __device__ void Finish(const RowScale<A>& scale, std::uint32_t next) {
    params_.Use(scale);
    const Run then = Find(next);
    const int left = run_.bytes - lane_ * kVectorBytes;
    char* out = run_.y + lane_ * kVectorBytes;
    asm volatile("" : "+l"(out));  // One address for all stores, not one for each.
#pragma unroll
    for (int i = 0; i < kClusterVectors / kChunkVectors; ++i) {
      if (i * kChunkBytes < run_.bytes) {
        Vector chunk[kChunkVectors];
#pragma unroll
        for (int k = 0; k < kChunkVectors; ++k) {
          chunk[k] = vectors_[i * kChunkVectors + k];
          Repack(chunk[k]);
        }
        params_.Scale(run_.params, i, left, lane_, chunk);
#pragma unroll
        for (int k = 0; k < kChunkVectors; ++k) {
          const int offset = i * kChunkBytes + k * kStepBytes;
          if (offset < left) StoreVector(out + offset, chunk[k]);
        }
      }
      Ask(then, i * kChunkVectors, kChunkVectors);
    }
    run_ = then;
  }

 private:
  struct Run {
    const char* x = nullptr;
    char* y = nullptr;
    int bytes = 0;
    std::int64_t elements = 0;  // In the row.
    typename Params::Place params;
  };

  __device__ Run Find(std::uint32_t index) const {
    Run run;
    if (index >= batch_.rows) return run;
    const Row row = FindRow(batch_, index);
    run.x = row.x + place_.begin;
    run.y = row.y + place_.begin;
    run.bytes = min(ClampToRun(row.bytes - place_.begin, place_.bytes), place_.bytes);
    run.elements = row.elements;
    run.params = params_.Find(row, run.bytes);
    return run;
  }

  __device__ void Ask(const Run& run, int first, int count) {
    const int left = run.bytes - lane_ * kVectorBytes;
    const char* in = run.x + lane_ * kVectorBytes;
    asm volatile("" : "+l"(in));
#pragma unroll
    for (int i = 0; i < kClusterVectors; ++i) {
      if (i < first || i >= first + count) continue;
      if (i * kStepBytes < left) vectors_[i] = LoadVector(in + i * kStepBytes);
    }
  }

  const RowBatch& batch_;
  const RunPlace place_;
  const int lane_;
  Params params_;
  Run run_;
  Vector vectors_[kClusterVectors];
};

// Any rows and parameters.
template <typename T, bool kAligned>
class ClusterWarp<T, kAligned, RunGeneral> {
 public:
  using A = Accumulator<T>;

  __device__ ClusterWarp(const RowBatch& batch, const RunPlace& place, std::uint32_t)
      : batch_(batch), place_(place), lane_(static_cast<int>(threadIdx.x) % kLanes) {}

  __device__ void FetchParams() const {}

  __device__ void Load(std::uint32_t index) {
    if (index >= batch_.rows) return;
    row_ = FindRow(batch_, index);
    bytes_ = min(ClampToRun(row_.bytes - place_.begin, place_.bytes), place_.bytes);
    run().Load(vectors_);
  }

  __device__ std::int64_t row_elements() const { return row_.elements; }

  template <typename AnyStatistics>
  __device__ Moments<A> Sum(AnyStatistics statistics) {
    return MergeStatistics(statistics, run().Sum(vectors_, statistics),
                           static_cast<A>(bytes_ / static_cast<int>(sizeof(T))), kLanes);
  }

  __device__ void Prepare() {}

  __device__ void Finish(const RowScale<A>& scale, std::uint32_t next) {
    run().Finish(GeneralParams(), batch_, scale, vectors_);
    Load(next);
  }

 private:
  // The bytes after the run are another warp's, even if a lane has room for more.
  __device__ RegisterTile<T, kAligned, kClusterVectors> run() const {
    return {row_, static_cast<int>(place_.begin), bytes_, lane_, kLanes};
  }

  const RowBatch& batch_;
  const RunPlace place_;
  const int lane_;
  Row row_ = {};
  int bytes_ = 0;
  Vector vectors_[kClusterVectors];
};

// Rows that are not aligned, with parameters of elements, which stay in shared memory, or
// RowParams.
template <typename T, typename P>
class ClusterWarp<T, false, RunWords<P>> {
 public:
  using A = Accumulator<T>;

  __device__ ClusterWarp(const RowBatch& batch, const RunPlace& place, std::uint32_t params)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        params_{params, params + RunWords<P>::template ArrayBytes<T>(place.bytes)} {}

  // As RunElements::Fetch.
  __device__ void FetchParams() const {
    if constexpr (!kOfRow) {
      Fetch(batch_.gamma, params_.gamma);
      Fetch(batch_.beta, params_.beta);
    }
  }

  __device__ void Load(std::uint32_t index) {
    Find(index, &row_, &bytes_);
    const Tile tile = TileOf(row_, bytes_);
#pragma unroll
    for (int i = 0; i < kClusterVectors; ++i) tile.Ask(i, vectors_, &beyond_);
  }

  __device__ std::int64_t row_elements() const { return row_.elements; }

  template <typename AnyStatistics>
  __device__ Moments<A> Sum(AnyStatistics statistics) {
    const Tile tile = TileOf(row_, bytes_);
    tile.Settle(vectors_, beyond_);
    return MergeStatistics(statistics, tile.Sum(vectors_, statistics),
                           static_cast<A>(bytes_ / static_cast<int>(sizeof(T))), kLanes);
  }

  __device__ void Prepare() {}

  __device__ void Finish(const RowScale<A>& scale, std::uint32_t next) {
    Row then;
    int then_bytes;
    Find(next, &then, &then_bytes);
    const Tile next_tile = TileOf(then, then_bytes);
    const auto ask = [&](int i) { next_tile.Ask(i, vectors_, &beyond_); };
    if constexpr (kOfRow) {
      TileOf(row_, bytes_).Finish(RowParamValues<A>(batch_, row_), batch_, scale, vectors_, ask);
    } else {
      TileOf(row_, bytes_).Finish(params_, batch_, scale, vectors_, ask);
    }
    row_ = then;
    bytes_ = then_bytes;
  }

 private:
  static constexpr bool kOfRow = std::is_same_v<P, RowParams>;
  using Tile = WordTile<T, kClusterVectors>;

  __device__ Tile TileOf(const Row& row, int bytes) const {
    return {row, static_cast<int>(place_.begin), bytes, lane_, kLanes};
  }

  // No bytes if there is no such row.
  __device__ void Find(std::uint32_t index, Row* row, int* bytes) const {
    *row = FindRow(batch_, min(index, batch_.rows - 1));
    *bytes = min(ClampToRun(row->bytes - place_.begin, place_.bytes), place_.bytes);
    if (index >= batch_.rows) *bytes = 0;
  }

  __device__ void Fetch(const ParamVector& param, std::uint32_t to) const {
    const std::int64_t first = place_.begin / static_cast<int>(sizeof(T));
    const std::int64_t left = (FindRow(batch_, 0).elements - first) * std::int64_t{sizeof(P)};
    const auto* const from =
        reinterpret_cast<const char*>(static_cast<const P*>(param.data) + first);
    const int bytes = RunWords<P>::template ArrayBytes<T>(place_.bytes);
    for (int at = lane_ * kVectorBytes; at < bytes; at += kStepBytes) {
      if (param.data != nullptr && at + kVectorBytes <= left) {
        CopyToShared(to + at, from + at);
      } else {
        const int rest =
            param.data == nullptr ? 0 : static_cast<int>(max(left - at, std::int64_t{0}));
        WriteShared(to + at, LoadHead<P>(from + at, rest));
      }
    }
  }

  const RowBatch& batch_;
  const RunPlace place_;
  const int lane_;
  const StagedParams<P> params_;
  Row row_ = {};
  int bytes_ = 0;
  std::uint32_t beyond_ = 0;
  Vector vectors_[kClusterVectors];
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_CLUSTER_WARP_CUH_
