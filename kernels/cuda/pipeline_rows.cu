// Persistent teams of warps, each with a ring of rows in shared memory: rows of 1 KiB to 64 KiB.
//
// Phases: a team of 1 to 16 warps takes every teams-th row, its warps a run each (ring.cuh). Lanes
// merge their sums by shuffles; in a team of several warps each writes its partial to shared
// memory, and after one barrier of the team's own every warp merges all partials for itself. Bytes:
// each element is read once and written once; gamma and beta once per block where registers hold
// them, else from the caches. Occupancy: one block of 16 warps with most of the multiprocessor's
// shared memory, so that 64 KiB or more of loads are in flight in each. Teams share no rhythm.
// Determinism: places and merge orders follow from the row's length; no atomics.

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/rows.cuh"

namespace norm::cuda {
namespace {

struct TeamShape {
  int warps;  // Of a team.
  int granules;
  int stages;
};

// A team's own barrier; barrier 0 is __syncthreads.
__device__ inline void TeamSync(int team, int warps) {
  if (warps == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(warps * kLanes) : "memory");
  }
}

template <typename T, bool kAligned, bool kRegisterParams>
__global__ void __launch_bounds__(kRingWarps* kLanes, 1)
    PipelineRows(const __grid_constant__ RowBatch batch, const TeamShape shape) {
  using A = Accumulator<T>;
  extern __shared__ Granule ring[];
  __shared__ Moments<A> partials[2][kRingWarps];
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int block_team = warp / shape.warps;
  const int member = warp % shape.warps;
  const std::uint32_t teams = gridDim.x * (blockDim.x / kLanes / shape.warps);
  // Neighbouring rows to different blocks: few rows spread over all multiprocessors.
  const std::uint32_t team = block_team * gridDim.x + blockIdx.x;

  const RingWarp<T, kAligned, kRegisterParams> worker(
      batch, {static_cast<std::int64_t>(member) * shape.granules * kLanes * kGranuleBytes,
              ring + warp * shape.stages * RingStageGranules(shape.granules), shape.granules});
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::uint32_t index = team + stage * teams;
    if (index < batch.rows) worker.Ask(FindRow<T>(batch, index), stage);
    CommitCopies();
  }
  int stage = 0;
  int parity = 0;
  for (std::uint32_t index = team; index < batch.rows; index += teams) {
    const Row row = FindRow<T>(batch, index);
    WaitCopies(shape.stages - 1);
    Moments<A> moments = worker.Sum(row, stage);
    if (shape.warps > 1) {
      Moments<A>* const own = &partials[parity][block_team * shape.warps];
      if (worker.lane() == 0) own[member] = moments;
      TeamSync(block_team, shape.warps);
      moments = MergeLanes(worker.lane() < shape.warps ? own[worker.lane()] : Moments<A>(),
                           static_cast<A>(row.elements), kLanes);
      parity ^= 1;
    }
    const std::uint32_t next = index + shape.stages * teams;
    const bool refill = next < batch.rows;
    worker.Scale(row, FinishRow(moments, batch.eps), refill,
                 FindRow<T>(batch, refill ? next : index), stage);
    CommitCopies();
    stage = stage + 1 == shape.stages ? 0 : stage + 1;
  }
}

template <typename T, bool kAligned>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch) {
  const bool register_params =
      launch.plan.params_in_registers && launch.spec.activation == Activation::kNone;
  const auto kernel =
      register_params ? &PipelineRows<T, kAligned, true> : &PipelineRows<T, kAligned, false>;
  const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(launch.plan.shared_bytes));
  if (error != cudaSuccess) return error;
  const TeamShape shape = {launch.plan.warps, launch.plan.granules, launch.plan.stages};
  const auto blocks =
      std::min(batch.rows, static_cast<std::uint32_t>(launch.limits.multiprocessors));
  const int threads = kRingWarps / shape.warps * shape.warps * kLanes;
  kernel<<<blocks, threads, launch.plan.shared_bytes, launch.stream>>>(batch, shape);
  return cudaGetLastError();
}

}  // namespace

Status LaunchPipelineRows(const Launch& launch) {
  return ForEachRowBatch(
      launch, "pipeline rows", [&](auto element, auto aligned, const auto& batch) {
        return Enqueue<typename decltype(element)::Type, decltype(aligned)::value>(launch, batch);
      });
}

}  // namespace norm::cuda
