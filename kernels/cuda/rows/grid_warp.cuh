// A warp of the grid kernels that holds rows: sums its run of a row where it arrived, moves it into
// registers, scales and stores it.

#ifndef NORMD_KERNELS_CUDA_ROWS_GRID_WARP_CUH_
#define NORMD_KERNELS_CUDA_ROWS_GRID_WARP_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/chunk_moments.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/run_params.cuh"
#include "kernels/cuda/rows/staging_ring.cuh"

namespace normd::norm::cuda {

inline constexpr int kMaxChunks = kGridVectors / kChunkVectors;

// A warp's run of one row, in registers. Registers have no index at run time: Take and Put branch
// to the code of one chunk.
class RegisterRow {
 public:
  __device__ void Get(int index, Vector (&chunk)[kChunkVectors]) const {
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      chunk[i] = vectors_[index * kChunkVectors + i];
      Repack(chunk[i]);
    }
  }
  __device__ void Set(int index, const Vector (&chunk)[kChunkVectors]) {
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) vectors_[index * kChunkVectors + i] = chunk[i];
  }
  __device__ void Take(int index, Vector (&chunk)[kChunkVectors]) const {
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (c == index) Get(c, chunk);
    }
  }
  __device__ void Put(int index, const Vector (&chunk)[kChunkVectors]) {
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (c == index) Set(c, chunk);
    }
  }

 private:
  Vector vectors_[kGridVectors];
};

// One warp's work on rows that are aligned, with parameters of a known kind. Its loops over chunks
// are unrolled, so that chunks overlap.
template <typename T, bool kAligned, typename Params>
class GridWarp {
 public:
  using A = Accumulator<T>;

  __device__ GridWarp(const RowBatch& batch, const StagingPlace& place, const RowQueue& queue,
                      std::uint32_t params)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        ring_(batch, place, queue),
        params_(batch, {place.begin, place.run_bytes}, params) {
    params_.Fetch();
    ring_.Fill(kLookahead - 1);
    AwaitCopies();
  }

  // Sums the run of a row, which stays in place; every lane gets the result.
  // `statistics` as SumRun's.
  template <typename AnyStatistics>
  __device__ Moments<A> Sum(std::uint32_t index, AnyStatistics statistics) {
    const Row row = FindRow(batch_, index);
    next_.y = row.y + place_.begin;
    next_.bytes = ring_.RunOf(row).bytes;
    next_.params = params_.Find(row, next_.bytes);
    const int left = next_.bytes - lane_ * kVectorBytes;
    const int whole = next_.bytes / kChunkBytes;
    if (IsOfAbsolutes(statistics)) return SumAbsolutes(left, statistics);
    ChunkMoments<T> moments(IsCentered(statistics));
#pragma unroll
    for (int i = 0; i < kMaxChunks; ++i) {
      if (i >= whole) break;
      Vector chunk[kChunkVectors];
      Read(ring_.Await(), chunk);
      if (i == 0) {
#pragma unroll
        for (const Vector& vector : chunk) moments.AddToReference(vector);
        moments.SetReference(kChunkVectors * kPerVector<T>);
      }
#pragma unroll
      for (const Vector& vector : chunk) moments.Add(vector);
    }
    if (whole * kChunkBytes < next_.bytes) {
      SumRest(ring_.Await(), left - whole * kChunkBytes, whole == 0, &moments);
    }
    return Merged(statistics, moments.Result(LaneElements<T>(left)));
  }

  // Call before Turn: loads the parameters of the row that the registers hold.
  __device__ void Prepare() { params_.Load(held_.params, held_.bytes); }

  // Scales and stores the row that the registers hold, if any, and moves the summed row there.
  // Loads rows up to those of turn `known`.
  __device__ void Turn(std::uint32_t, const RowScale<A>& scale, std::uint32_t,
                       std::uint32_t known) {
    params_.Use(scale);
    const int left = held_.bytes - lane_ * kVectorBytes;
    char* out = held_.y + lane_ * kVectorBytes;
    asm volatile("" : "+l"(out));  // One address for all stores, not one for each.
#pragma unroll
    for (int i = 0; i < kMaxChunks; ++i) {
      if (i * kChunkBytes < held_.bytes) {
        Vector chunk[kChunkVectors];
        row_.Get(i, chunk);
        params_.Scale(held_.params, i, left, lane_, chunk);
#pragma unroll
        for (int k = 0; k < kChunkVectors; ++k) {
          const int offset = i * kChunkBytes + k * kStepBytes;
          // Leaves before gamma and beta, if these come from the L2 cache too.
          if (offset < left) __stcs(reinterpret_cast<uint4*>(out + offset), chunk[k]);
        }
      }
      if (i * kChunkBytes < next_.bytes) {
        Vector chunk[kChunkVectors];
        Read(ring_.Again(), chunk);
        row_.Set(i, chunk);
        ring_.Free(chunk);
        ring_.AskForOne();
      }
    }
    ring_.Fill(known);
    held_ = next_;
    next_.bytes = 0;
  }

 private:
  // The run of a row.
  struct RegisterTile {
    char* y = nullptr;
    int bytes = 0;
    typename Params::Place params;
  };

  template <typename AnyStatistics>
  __device__ Moments<A> Merged(AnyStatistics statistics, const Moments<A>& own) const {
    return MergeStatistics(statistics, own,
                           static_cast<A>(next_.bytes / static_cast<int>(sizeof(T))), kLanes);
  }

  // Sum, for absolutes. `left` bytes of the run exist from the lane's first vector on.
  template <typename AnyStatistics>
  __device__ Moments<A> SumAbsolutes(int left, AnyStatistics statistics) {
    LaneAbsolutes<T> absolutes;
#pragma unroll 1
    for (int begin = 0; begin < next_.bytes; begin += kChunkBytes) {
      Vector chunk[kChunkVectors];
      Read(ring_.Await(), chunk);
#pragma unroll
      for (int i = 0; i < kChunkVectors; ++i) {
        if (begin + i * kStepBytes < left) absolutes.Add(chunk[i]);
      }
    }
    return Merged(statistics, absolutes.Finish(statistics, LaneElements<T>(left)));
  }

  // Adds the run's last chunk, which is not whole: `rest` bytes from the lane's first vector on.
  __device__ void SumRest(std::uint32_t slot, int rest, bool first,
                          ChunkMoments<T>* moments) const {
    const std::uint32_t place = slot + lane_ * kVectorBytes;
    if (first) {
#pragma unroll 1
      for (int at = 0; at < rest; at += kStepBytes) {
        moments->AddToReference(ReadShared(place + at));
      }
      moments->SetReference(LaneElements<T>(rest));
    }
#pragma unroll 1
    for (int at = 0; at < rest; at += kStepBytes) moments->Add(ReadShared(place + at));
  }

  __device__ void Read(std::uint32_t slot, Vector (&chunk)[kChunkVectors]) const {
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      chunk[i] = ReadShared(slot + i * kStepBytes + lane_ * kVectorBytes);
    }
  }

  const RowBatch& batch_;
  const StagingPlace place_;
  const int lane_;
  StagingRing<true> ring_;
  Params params_;
  RegisterRow row_;
  RegisterTile held_;  // In registers.
  RegisterTile next_;  // The one that is summed.
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_GRID_WARP_CUH_
