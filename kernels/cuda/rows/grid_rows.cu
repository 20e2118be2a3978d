// Rows spread over co-resident blocks that exchange partials in global memory (grid_exchange.cuh).
//
// The blocks of a launch form teams of blocks_per_row. A team takes rows, each block the same slice
// of each, cut into the runs of 11 warps; a 12th (the coordinator) merges the warps' partials and
// exchanges them with the other blocks. A row passes through three places: it arrives in shared
// memory (staging_ring.cuh) and is summed there; it moves into registers while the row before is
// stored from them; it is stored. In turn t a warp
//   sums its run of row t,
//   waits for the statistics of row t - 1, which the coordinator has collected in the meantime,
//   scales and stores row t - 1 from registers, chunk by chunk, moves row t there in its place,
//   and loads chunks of later rows into the slots that this frees.
// A block waits for an exchange only if another block is a turn behind, and loads and stores are in
// flight in every phase.
//
// Bytes: each element is read once and written once. If rows share gamma and beta element by
// element and there is room, a block keeps its slice of both in shared memory; otherwise they come
// from the L2 cache.
// Occupancy: one block of 12 warps with all the registers and up to 223 KiB of shared memory, of
// which 132 and 198 KiB hold rows.
// Determinism: places and merge orders follow from the row's length; no atomics touch the sums.
//
// The launch is cooperative, so all its blocks are resident at once and none waits for one that
// cannot start, whatever else runs on the device. The last block to leave zeroes the slots.

#include <cuda_runtime.h>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/rows/grid_any_warp.cuh"
#include "kernels/cuda/rows/grid_coordinator.cuh"
#include "kernels/cuda/rows/grid_exchange.cuh"
#include "kernels/cuda/rows/grid_shared.cuh"
#include "kernels/cuda/rows/grid_warp.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/run_params.cuh"
#include "kernels/cuda/rows/staging_ring.cuh"
#include "kernels/cuda/rows/work_counter.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = (kGridWarps + 1) * kLanes;
constexpr int kEagerBlocks = 16;
constexpr int kEagerVectors = 12;

// Whether parameters of elements have kernels for activations.
template <typename T>
constexpr bool kActivatedElements = std::is_same_v<T, float>;

// The work of the warps that hold rows.
template <typename T, RowSums kSums, typename Warp>
__device__ void ComputeRows(const RowBatch& batch, int warp, Warp* worker,
                            GridShared<Accumulator<T>>* shared) {
  using A = Accumulator<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  std::uint32_t row = shared->queue.OfTurn(0),
                last = batch.rows;  // This turn's row and the one before.
  for (std::uint32_t turn = 0; row < batch.rows || last < batch.rows; ++turn) {
    if (last < batch.rows) worker->Prepare();
    if (row < batch.rows) {
      const std::uint32_t side = turn % 2;
      const Moments<A> partial = worker->Sum(row, StatisticsOf<kSums>(batch));
      if (lane == 0) shared->partials[side][warp] = partial;
      ArriveAtBarrier(SharedAddress(&shared->summed[side]));
    }
    RowScale<A> scale;
    if (last < batch.rows) {
      const std::uint32_t before = turn - 1;
      AwaitBarrier(SharedAddress(&shared->scaled[before % 2]), before / 2 % 2);
      scale = shared->scales[before % 2];
    }
    worker->Turn(last, scale, row, turn + kLookahead - 1);
    last = row;
    if (row < batch.rows) row = shared->queue.OfTurn(turn + 1);
  }
}

template <typename T, bool kAligned, typename Params, RowSums kSums>
__global__ void __launch_bounds__(kThreads, 1)
    GridRows(const __grid_constant__ RowBatch batch, const __grid_constant__ GridShape shape,
             ExchangeArea* area) {
  using A = Accumulator<T>;
  extern __shared__ __align__(128) Vector memory[];
  __shared__ GridShared<A> shared;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kLanes, 0);
  const std::uint32_t teams = gridDim.x / shape.blocks_per_row;
  const std::uint32_t team = blockIdx.x / shape.blocks_per_row;
  if (threadIdx.x < kLookahead) shared.queue.rows[threadIdx.x] = team + threadIdx.x * teams;
  if (threadIdx.x < 2) {
    InitBarrier(SharedAddress(&shared.summed[threadIdx.x]), kGridWarps * kLanes);
    PublishBarriers();
    InitBarrier(SharedAddress(&shared.scaled[threadIdx.x]), kLanes);
    PublishBarriers();
  }
  __syncthreads();
  if (warp == kGridWarps) {
    GridCoordinator<T, kSums>(batch, shape, area, &shared).Run();
  } else {
    const int rank = static_cast<int>(blockIdx.x) % shape.blocks_per_row;
    const int run_bytes = shape.vectors * kStepBytes;
    constexpr int kSlotBytes = SlotBytes(kAligned);
    const std::uint32_t ring = SharedAddress(memory);
    const std::uint32_t barriers = ring + kGridWarps * shape.slots * kSlotBytes;
    const std::uint32_t params = ring + kGridWarps * shape.slots * (kSlotBytes + kVectorBytes);
    const StagingPlace place = {std::int64_t{rank * kGridWarps + warp} * run_bytes,
                                run_bytes,
                                shape.slots,
                                static_cast<std::uint32_t>(shape.slots) >> 16,
                                ring + warp * shape.slots * kSlotBytes,
                                barriers + warp * shape.slots * 8,
                                shape.rows_pass ? PassPolicy() : KeepPolicy()};
    GridWarp<T, kAligned, Params> worker(
        batch, place, shared.queue, shape.param_bytes == 0 ? 0 : params + warp * shape.param_bytes);
    ComputeRows<T, kSums>(batch, warp, &worker, &shared);
  }
  LeaveExchange(area, teams * TeamWords<A>(shape.blocks_per_row));
}

template <typename T>
std::uint32_t MostTeams(const Launch& launch) {
  const auto blocks = static_cast<unsigned>(launch.plan.blocks_per_row);
  const unsigned held = static_cast<unsigned>(launch.limits.multiprocessors) / blocks;
  constexpr unsigned kWords = sizeof(ExchangeArea::words) / sizeof(uint4);
  return std::min(held, kWords / TeamWords<Accumulator<T>>(blocks));
}

template <typename T, typename Params, RowSums kSums = RowSums::kMoments>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch, bool aligned) {
  const Plan& plan = launch.plan;
  const int param_bytes = Params::RunParamBytes(launch);
  const GridMemory memory = DivideGridMemory(launch.limits, plan.vectors, aligned, param_bytes);
  const GridShape shape = {plan.blocks_per_row,
                           plan.vectors,
                           memory.slots,
                           memory.param_bytes,
                           plan.blocks_per_row <= kEagerBlocks || plan.vectors <= kEagerVectors,
                           param_bytes > 0 && memory.param_bytes == 0};
  const std::uint32_t teams = std::min<std::uint32_t>(batch.rows, MostTeams<T>(launch));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(teams * static_cast<unsigned>(plan.blocks_per_row));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = memory.bytes;
  config.stream = launch.stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto kernel =
      aligned ? &GridRows<T, true, Params, kSums> : &GridRows<T, false, RunGeneral, kSums>;
  return cudaLaunchKernelEx(&config, kernel, batch, shape,
                            static_cast<ExchangeArea*>(launch.exchange));
}

}  // namespace

cudaError_t PrepareGridRows(const DeviceLimits& limits) {
  return ForEachElementType([&](auto element) {
    using T = typename decltype(element)::Type;
    cudaError_t error =
        AllowSharedBytes(&GridRows<T, false, RunGeneral, RowSums::kMoments>, limits);
    if constexpr (!std::is_same_v<T, double>) {
      using Bare = RunChannels<T, NoActivation>;
      for (const auto kernel : {&GridRows<T, false, RunGeneral, RowSums::kNorms>,
                                &GridRows<T, true, Bare, RowSums::kNorms>}) {
        if (error == cudaSuccess) error = AllowSharedBytes(kernel, limits);
      }
    }
    if (error != cudaSuccess) return error;
    return ForEachRunKind<T, kActivatedElements<T>, TanhSilu>([&](auto kind) {
      return AllowSharedBytes(&GridRows<T, true, typename decltype(kind)::Type, RowSums::kMoments>,
                              limits);
    });
  });
}

Status LaunchGridRows(const Launch& launch) {
  return ForEachRowBatch(
      launch, "grid rows", [&](auto element, auto aligned, const RowBatch& batch) -> cudaError_t {
        using T = typename decltype(element)::Type;
        if (IsNorm(launch)) {
          if constexpr (std::is_same_v<T, double>) {
            return cudaErrorInvalidValue;  // No plan has this.
          } else {
            return Enqueue<T, RunChannels<T, NoActivation>, RowSums::kNorms>(
                launch, batch, decltype(aligned)::value);
          }
        }
        if constexpr (!decltype(aligned)::value) {
          return Enqueue<T, RunGeneral>(launch, batch, false);
        } else {
          return WithRunKind<T, kActivatedElements<T>, TanhSilu>(launch, batch, [&](auto kind) {
            return Enqueue<T, typename decltype(kind)::Type>(launch, batch, true);
          });
        }
      });
}

}  // namespace normd::norm::cuda
