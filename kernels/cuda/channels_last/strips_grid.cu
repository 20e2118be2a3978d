// Channels-last strips spread over co-resident blocks (strip_worker.cuh): strips that fit no
// cluster at a width that memory access favours.
//
// Exchange: teams of blocks, each with its strips in turn, use slots in global memory
// (exchange_slots.cuh). Each block publishes one slot per group with one store, and a warp per
// group polls the team's slots.
// Bytes: each element is read once and written once.
// Occupancy: two blocks of 512 threads on a multiprocessor, 128 KiB of data in each: 12 vectors of
// a thread in shared memory, 4 in its registers. One block moves data while the other exchanges.
// Determinism: fixed places, one writer per slot, a fixed merge order; no atomics. The launch is
// cooperative, so that a team's blocks wait only for blocks that run.

#include <cuda_runtime.h>

#include "kernels/cuda/channels_last/channels_last.h"
#include "kernels/cuda/channels_last/strip_worker.cuh"
#include "kernels/cuda/channels_last/strips.cuh"
#include "kernels/cuda/device/exchange_slots.cuh"
#include "kernels/cuda/device/relaxed_memory.cuh"
#include "kernels/cuda/dispatch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kMinBlocks = kGridBlocksPerMultiprocessor;

template <typename A>
__device__ inline void StoreSlot(ExchangeSlot<A>* to, const ExchangeSlot<A>& slot) {
#pragma unroll
  for (int i = 0; i < ExchangeSlot<A>::kWords; ++i) {
    StoreRelaxed(&to->words[i], slot.words[i]);
  }
}

template <typename A>
__device__ inline ExchangeSlot<A> LoadSlot(const ExchangeSlot<A>* from) {
  ExchangeSlot<A> slot;
#pragma unroll
  for (int i = 0; i < ExchangeSlot<A>::kWords; ++i) {
    slot.words[i] = LoadRelaxed(&from->words[i]);
  }
  return slot;
}

template <typename A>
class StripGridExchange {
 public:
  // `slots`: the team's [2][groups][blocks], unused so far or all zero.
  __device__ StripGridExchange(ExchangeSlot<A>* slots, const StripPlan& plan, int rank)
      : slots_(slots), groups_(plan.groups), blocks_(plan.blocks), rank_(rank) {}

  __device__ void AwaitPeers() {}

  __device__ void Send(int group, const Moments<A>& moments) {
    if (threadIdx.x % kLanes != 0) return;
    StoreSlot(&Place(group)[rank_], EncodeSlot(moments, epoch_));
  }

  __device__ Moments<A> Receive(int group, A count) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    if (lane >= blocks_) return Moments<A>();
    ExchangeSlot<A> slot;
    do {
      slot = LoadSlot(&Place(group)[lane]);
    } while (!HasEpoch(slot, epoch_));
    return DecodeSlot(slot, count);
  }

  __device__ void Next() { ++epoch_; }

 private:
  __device__ ExchangeSlot<A>* Place(int group) const {
    return slots_ + (static_cast<int>(epoch_ % 2) * groups_ + group) * blocks_;
  }

  ExchangeSlot<A>* const slots_;
  const int groups_;
  const int blocks_;
  const int rank_;
  std::uint32_t epoch_ = 1;
};

// The second half of the teams begins when the first half has published for the first time. With
// two blocks on a multiprocessor, one then moves data while the other exchanges.
template <typename A>
__device__ inline void AwaitTurn(const ExchangeSlot<A>* slots, const StripPlan& plan,
                                 std::uint32_t strips, int team, int teams, int rank) {
  const int half = (teams + 1) / 2;
  if (team < half || strips <= static_cast<std::uint32_t>(teams)) return;
  // Group 0's slot for epoch 1, or for a later odd one.
  const auto* const slot = slots + ((team - half) * 2 + 1) * plan.groups * plan.blocks + rank;
  if (threadIdx.x == 0) {
    while (HasEpoch(LoadSlot(slot), 0)) continue;
  }
  __syncthreads();
}

template <typename T, int kParts, bool kAligned>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    ChannelsLastGrid(const __grid_constant__ RowBatch batch, const __grid_constant__ StripPlan plan,
                     ExchangeSlot<Accumulator<T>>* slots) {
  extern __shared__ __align__(16) char memory[];
  const int team = static_cast<int>(blockIdx.x) / plan.blocks;
  const int teams = static_cast<int>(gridDim.x) / plan.blocks;
  const int rank = static_cast<int>(blockIdx.x) - team * plan.blocks;
  AwaitTurn(slots, plan, batch.rows, team, teams, rank);
  StripGridExchange<Accumulator<T>> exchange(slots + team * 2 * plan.groups * plan.blocks, plan,
                                             rank);
  StripWorker<T, kParts, kAligned, kGridHeldVectors, StripGridExchange<Accumulator<T>>>(
      batch, plan, memory, rank, exchange)
      .Run(team, teams);
}

// Teams that run at once, at most one for each strip.
std::int64_t Teams(const DeviceLimits& limits, const StripPlan& plan, std::int64_t strips) {
  return std::min<std::int64_t>(strips, kMinBlocks * limits.multiprocessors / plan.blocks);
}

template <typename T, int kParts, bool kAligned>
cudaError_t Enqueue(const RowBatch& batch, const StripPlan& plan, const Launch& launch) {
  const auto kernel = ChannelsLastGrid<T, kParts, kAligned>;
  // The value is always the same: threads that launch other plans at the same time set it too.
  cudaError_t error = AllowSharedBytes(kernel, launch.limits);
  if (error != cudaSuccess) return error;
  const auto teams = static_cast<unsigned>(Teams(launch.limits, plan, batch.rows));
  using Slot = ExchangeSlot<Accumulator<T>>;
  const std::size_t slots = static_cast<std::size_t>(teams) * 2 * plan.groups * plan.blocks;
  error = cudaMemsetAsync(launch.scratch, 0, slots * sizeof(Slot), launch.stream);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(teams * static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, batch, plan, static_cast<Slot*>(launch.scratch));
}

}  // namespace

Status LaunchChannelsLastGrid(const Launch& launch, const StripPlan& plan) {
  return ForEachStripBatch(launch, plan, "channels-last grid",
                           [&](auto element, auto parts, auto aligned, const RowBatch& batch) {
                             return Enqueue<typename decltype(element)::Type,
                                            decltype(parts)::value, decltype(aligned)::value>(
                                 batch, plan, launch);
                           });
}

std::size_t ChannelsLastGridScratchBytes(const NormSpec& spec, const DeviceLimits& limits,
                                         const StripPlan& plan, std::int64_t samples) {
  const std::int64_t teams = Teams(limits, plan, samples * (spec.groups / plan.groups));
  const std::size_t slot =
      spec.dtype == DType::kFloat64 ? sizeof(ExchangeSlot<double>) : sizeof(ExchangeSlot<float>);
  return static_cast<std::size_t>(teams * 2 * plan.groups * plan.blocks) * slot;
}

}  // namespace normd::norm::cuda
