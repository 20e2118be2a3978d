// grid_warp.cuh for any rows and parameters. One copy of the code serves every chunk.

#ifndef NORMD_KERNELS_CUDA_ROWS_GRID_ANY_WARP_CUH_
#define NORMD_KERNELS_CUDA_ROWS_GRID_ANY_WARP_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/chunk_moments.cuh"
#include "kernels/cuda/rows/grid_warp.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/run_params.cuh"
#include "kernels/cuda/rows/staging_ring.cuh"

namespace normd::norm::cuda {

template <typename T, bool kAligned>
class GridWarp<T, kAligned, RunGeneral> {
 public:
  using A = Accumulator<T>;

  __device__ GridWarp(const RowBatch& batch, const StagingPlace& place, const RowQueue& queue,
                      std::uint32_t)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        ring_(batch, place, queue) {
    ring_.Fill(kLookahead - 1);
  }

  template <typename AnyStatistics>
  __device__ Moments<A> Sum(std::uint32_t index, AnyStatistics statistics) {
    const Run run = ring_.RunOf(FindRow(batch_, index));
    const int left = run.bytes - lane_ * kVectorBytes;
    const int chunks = run.chunks();
    const bool of_absolutes = IsOfAbsolutes(statistics);
    LaneAbsolutes<T> absolutes;
    ChunkMoments<T> moments(IsCentered(statistics));
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      Vector chunk[kChunkVectors];
      run.template Read<T>(ring_.Await(), i, lane_, chunk);
      const int rest = left - i * kChunkBytes;
      if (of_absolutes) {
        ForVectors(chunk, rest,
                   [&](const Vector& vector, int present) { absolutes.Add(vector, present); });
        continue;
      }
      if (i == 0) {
        ForVectors(chunk, rest, [&](const Vector& vector, int present) {
          moments.AddToReference(vector, present);
        });
        moments.SetReference(LaneElements<T>(min(rest, kChunkBytes)));
      }
      ForVectors(chunk, rest,
                 [&](const Vector& vector, int present) { moments.Add(vector, present); });
    }
    const int elements = LaneElements<T>(left);
    return MergeStatistics(
        statistics,
        of_absolutes ? absolutes.Finish(statistics, elements) : moments.Result(elements),
        static_cast<A>(run.bytes / static_cast<int>(sizeof(T))), kLanes);
  }

  __device__ void Prepare() {}

  // Stores row `index` and moves row `next` in; either may be none.
  __device__ void Turn(std::uint32_t index, const RowScale<A>& scale, std::uint32_t next,
                       std::uint32_t known) {
    const Row row = FindRow(batch_, index < batch_.rows ? index : 0);
    const int bytes = index < batch_.rows ? ring_.RunOf(row).bytes : 0;
    Run next_run;
    if (next < batch_.rows) next_run = ring_.RunOf(FindRow(batch_, next));
    const int chunks = max(bytes, next_run.bytes);
#pragma unroll 1
    for (int i = 0; i * kChunkBytes < chunks; ++i) {
      Vector chunk[kChunkVectors];
      row_.Take(i, chunk);
      if (i * kChunkBytes < next_run.bytes) {
        Vector fresh[kChunkVectors];
        next_run.template Read<T>(ring_.Again(), i, lane_, fresh);
        row_.Put(i, fresh);
        ring_.Free(fresh);
        ring_.AskForOne();
      }
      const int left = bytes - i * kChunkBytes;
      if (left <= 0) continue;
      Scale(row, scale, i, left, chunk);
      StoreRun<T, kAligned>(row.y + place_.begin + i * kChunkBytes, left, lane_, kLanes, chunk);
    }
    ring_.Fill(known);
  }

 private:
  using Run = StagedRun<kAligned>;
  using Channels = RunChannels<T, TanhSilu>;

  // Calls function(vector, present) for the vectors of a lane's part of a chunk that have elements;
  // `rest` bytes exist from the lane's first vector on.
  template <typename Function>
  __device__ static void ForVectors(const Vector (&chunk)[kChunkVectors], int rest,
                                    Function function) {
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      const int here = rest - i * kStepBytes;
      if (here >= kVectorBytes) {
        function(chunk[i], kPerVector<T>);
      } else if (!kAligned && here > 0) {
        function(chunk[i], here / static_cast<int>(sizeof(T)));
      }
    }
  }

  // Turns chunk `index` of the run, which has `bytes` bytes from its begin on, into results.
  __device__ void Scale(const Row& row, const RowScale<A>& scale, int index, int bytes,
                        Vector (&chunk)[kChunkVectors]) const {
    const std::int64_t element = (place_.begin + index * kChunkBytes) / static_cast<int>(sizeof(T));
    RunEpilogue<T> epilogue(batch_, row, scale, element,
                            element + min(bytes, kChunkBytes) / static_cast<int>(sizeof(T)));
    const std::int64_t first = element + lane_ * kPerVector<T>;
    if (epilogue.few_channels()) {
      if constexpr (Channels::kByTanh) {
        if (batch_.activation == Activation::kSilu) {
          ScaleByTanh(row, scale, index, bytes, chunk);
          return;
        }
      }
      const int of_first = epilogue.VectorsOfFirst(first, kLanes * kPerVector<T>, kChunkVectors);
      WithActivation(batch_.activation, [&](auto activation) {
#pragma unroll
        for (int i = 0; i < kChunkVectors; ++i) {
          chunk[i] =
              epilogue.template ApplyInChannel<decltype(activation)::value>(chunk[i], i < of_first);
        }
      });
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      chunk[i] = epilogue.Apply(chunk[i], first + i * kLanes * kPerVector<T>,
                                ElementsPresent<T>(bytes, i * kStepBytes + lane_ * kVectorBytes));
    }
  }

  // SiLU in a chunk of few channels. All chunks have few in a row that RunChannels serves in
  // another batch or at another address, and such a row must have the same bits here.
  __device__ void ScaleByTanh(const Row& row, const RowScale<A>& scale, int index, int bytes,
                              Vector (&chunk)[kChunkVectors]) const {
    const int here = min(bytes, kChunkBytes);
    Channels channels(batch_, {place_.begin + index * kChunkBytes, kChunkBytes}, 0);
    const typename Channels::Place found = channels.Find(row, here);
    channels.Load(found, here);
    channels.Use(scale);
    channels.ScaleEachByTanh(found.second - lane_ * kVectorBytes, chunk);
  }

  const RowBatch& batch_;
  const StagingPlace place_;
  const int lane_;
  StagingRing<kAligned> ring_;
  RegisterRow row_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_GRID_ANY_WARP_CUH_
