// Rows spread over a thread-block cluster whose blocks meet in distributed shared memory. Needs
// compute capability 9.0. ring_rows.cuh tells the rest.
//
// Each block writes its partial into a slot of every other block's shared memory; each polls its
// own. A cluster of more than 8 blocks is beyond what every such device must offer; the plan asks
// the device how many it holds.

#include "kernels/cuda/ring_rows.cuh"

namespace norm::cuda {
namespace {

// Cluster instructions exist from 9.0 on; the plan sends no older device here.
__device__ inline void ClusterSync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ inline void StoreToBlock(uint4* own_address, int rank, const uint4& word) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(own_address))), "r"(rank));
  asm volatile("st.relaxed.cluster.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
#endif
}
__device__ inline uint4 LoadOwn(const uint4* from) {
  uint4 word = make_uint4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.relaxed.cluster.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
#endif
  return word;
}

template <typename A>
class ClusterMeeting {
 public:
  using Place = NoPlace;
  using Slot = MeetingSlot<A>;

  __device__ ClusterMeeting(const Place&, const RingShape& shape)
      : blocks_(shape.blocks_per_row), slots_(Slots()) {}

  // Slots are zero before any block writes.
  __device__ void Begin() {
    for (int i = threadIdx.x; i < 2 * kMaxClusterBlocks * Slot::kWords; i += blockDim.x) {
      slots_[i] = make_uint4(0, 0, 0, 0);
    }
    ClusterSync();
  }

  __device__ Moments<A> Exchange(const Moments<A>& own, const BlockShares& shares,
                                 std::uint32_t row) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int rank = static_cast<int>(blockIdx.x) % blocks_;
    const std::uint32_t epoch = row + 1;
    uint4* const slots = slots_ + (row & 1) * kMaxClusterBlocks * Slot::kWords;
    const Slot slot = EncodeSlot(own, epoch);
    if (lane < blocks_) {
#pragma unroll
      for (int i = 0; i < Slot::kWords; ++i) {
        StoreToBlock(slots + rank * Slot::kWords + i, lane, slot.words[i]);
      }
    }
    return MergeSlots<A>(blocks_, shares, epoch, [&](int other) {
      Slot read;
#pragma unroll
      for (int i = 0; i < Slot::kWords; ++i) {
        read.words[i] = LoadOwn(slots + other * Slot::kWords + i);
      }
      return read;
    });
  }

  // No block leaves while another may still write to it.
  __device__ void End() { ClusterSync(); }

 private:
  __device__ static uint4* Slots() {
    __shared__ uint4 slots[2 * kMaxClusterBlocks * Slot::kWords];
    return slots;
  }

  const int blocks_;
  uint4* const slots_;
};

struct ClusterMeetings {
  template <typename A>
  using Of = ClusterMeeting<A>;
};

cudaLaunchConfig_t ClusterConfig(int blocks_per_row, std::uint32_t clusters,
                                 std::size_t shared_bytes, cudaLaunchAttribute* attribute) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(clusters * blocks_per_row);
  config.blockDim = dim3(kRingThreads);
  config.dynamicSmemBytes = shared_bytes;
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim.x = static_cast<unsigned>(blocks_per_row);
  attribute->val.clusterDim.y = 1;
  attribute->val.clusterDim.z = 1;
  config.attrs = attribute;
  config.numAttrs = 1;
  return config;
}

template <typename Kernel>
cudaError_t AllowLargeClusters(Kernel kernel) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

}  // namespace

cudaError_t QueryResidentClusters(DeviceLimits* limits) {
  const auto kernel = &RingRows<float, ClusterMeeting<float>, true, false>;
  const std::size_t shared_bytes = limits->shared_bytes_per_block - kRingReservedBytes;
  cudaError_t error = AllowLargeClusters(kernel);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  }
  for (int blocks = 2; blocks <= kMaxClusterBlocks && error == cudaSuccess; ++blocks) {
    cudaLaunchAttribute attribute = {};
    const cudaLaunchConfig_t config = ClusterConfig(blocks, 1, shared_bytes, &attribute);
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // A size that the device does not know: none are resident.
      clusters = 0;
    }
    limits->resident_clusters[blocks] = clusters;
  }
  return error;
}

Status LaunchClusterRows(const Launch& launch) {
  return ForEachRingBatch<ClusterMeetings>(
      launch, "cluster rows", [&](auto kernel, const RowBatch& batch, const RingShape& shape) {
        const cudaError_t error = AllowLargeClusters(kernel);
        if (error != cudaSuccess) return error;
        const int resident = launch.limits.resident_clusters[shape.blocks_per_row];
        cudaLaunchAttribute attribute = {};
        cudaLaunchConfig_t config = ClusterConfig(
            shape.blocks_per_row, std::min(batch.rows, static_cast<std::uint32_t>(resident)),
            launch.plan.shared_bytes, &attribute);
        config.stream = launch.stream;
        return cudaLaunchKernelEx(&config, kernel, batch, shape, NoPlace());
      });
}

}  // namespace norm::cuda
