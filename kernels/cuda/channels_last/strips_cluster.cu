// Channels-last strips in the shared memory of a thread-block cluster (strip_worker.cuh).
//
// Exchange: each block writes its partials into the shared memory of every block of the cluster;
// the writes complete a barrier of the receiving block, so nothing waits for more than it needs.
// Bytes: each element is read once and written once.
// Occupancy: three blocks of 256 threads on a multiprocessor of Hopper, at most 72 KiB of data in
// each: two blocks move data while the third exchanges.
// Determinism: fixed places, one writer per partial, a fixed merge order; no atomics.

#include <cuda_runtime.h>

#include "kernels/cuda/channels_last/channels_last.h"
#include "kernels/cuda/channels_last/strip_worker.cuh"
#include "kernels/cuda/channels_last/strips.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/dispatch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMinBlocks = 3;

// For one strip only.
template <typename A>
class StripClusterExchange {
 public:
  // Called by all threads of the block. `arrived` and `partials` are shared memory:
  // [groups][blocks].
  __device__ StripClusterExchange(std::uint64_t* arrived, Moments<A>* partials,
                                  const StripPlan& plan, int rank)
      : arrived_(arrived), partials_(partials), blocks_(plan.blocks), rank_(rank) {
    if (blocks_ == 1) return;
    if (threadIdx.x == 0) {
      const auto bytes = static_cast<int>(plan.groups * blocks_ * sizeof(Moments<A>));
      InitBarrier(SharedAddress(arrived_), 1);
      PublishBarriers();
      ArriveExpecting(SharedAddress(arrived_), bytes);
    }
    // Tells the cluster that this block's barrier exists; Send waits for the others'.
    ArriveAtClusterRelaxed();
  }

  // Called by all threads of the block before the first Send.
  __device__ void AwaitPeers() {
    if (blocks_ > 1) AwaitCluster();
  }

  __device__ void Send(int group, const Moments<A>& moments) {
    Moments<A>* const place = &partials_[group * blocks_ + rank_];
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    if (blocks_ == 1) {
      if (lane == 0) *place = moments;
      __syncwarp();
      return;
    }
    if (lane >= blocks_) return;
    const std::uint32_t there = PlaceInBlock(SharedAddress(place), lane);
    const std::uint32_t barrier = PlaceInBlock(SharedAddress(arrived_), lane);
    constexpr int kWords = static_cast<int>(sizeof(Moments<A>) / sizeof(uint4));
    struct Words {
      uint4 word[kWords];
    };
    const auto words = BitCast<Words>(moments);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      StoreInBlock(there + i * static_cast<int>(sizeof(uint4)), words.word[i], barrier);
    }
  }

  __device__ Moments<A> Receive(int group, A) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    if (blocks_ > 1) AwaitBarrierOfCluster(SharedAddress(arrived_), 0);
    return lane < blocks_ ? partials_[group * blocks_ + lane] : Moments<A>();
  }

  __device__ void Next() {}

 private:
  std::uint64_t* const arrived_;
  Moments<A>* const partials_;
  const int blocks_;
  const int rank_;
};

template <typename T, int kParts, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    ChannelsLastCluster(const __grid_constant__ RowBatch batch,
                        const __grid_constant__ StripPlan plan) {
  using A = Accumulator<T>;
  extern __shared__ __align__(16) char memory[];
  __shared__ std::uint64_t arrived;
  const StripShared<A> shared(memory, plan, static_cast<int>(batch.channels_per_group), kParts);
  const int rank = static_cast<int>(blockIdx.x) % plan.blocks;
  StripClusterExchange<A> exchange(&arrived, shared.blocks, plan, rank);
  StripWorker<T, kParts, kAligned, 0, StripClusterExchange<A>>(batch, plan, memory, rank, exchange)
      .Run(blockIdx.x / plan.blocks, batch.rows);
}

template <typename T, int kParts, bool kAligned>
cudaError_t Enqueue(const RowBatch& batch, const StripPlan& plan, const Launch& launch) {
  const auto kernel = ChannelsLastCluster<T, kParts, kAligned>;
  // The value is always the same: threads that launch other plans at the same time set it too.
  cudaError_t error = AllowSharedBytes(kernel, launch.limits);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(plan.blocks);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(batch.rows * static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &cluster;
  config.numAttrs = plan.blocks > 1 ? 1 : 0;
  if (plan.blocks > 8) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  return cudaLaunchKernelEx(&config, kernel, batch, plan);
}

}  // namespace

Status LaunchChannelsLastCluster(const Launch& launch, const StripPlan& plan) {
  return ForEachStripBatch(launch, plan, "channels-last cluster",
                           [&](auto element, auto parts, auto aligned, const RowBatch& batch) {
                             return Enqueue<typename decltype(element)::Type,
                                            decltype(parts)::value, decltype(aligned)::value>(
                                 batch, plan, launch);
                           });
}

}  // namespace normd::norm::cuda
