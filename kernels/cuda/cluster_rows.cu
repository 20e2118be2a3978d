// Rows spread over a thread-block cluster whose blocks meet in distributed shared memory. Needs
// compute capability 9.0. ring_rows.cuh tells the rest.
//
// Each block sends its partial into a slot of every block's shared memory (st.async), and waits for
// all slots of its own on a barrier that counts their bytes. The first block of a cluster also
// sends the ticket of a row to come (tickets.cuh). A cluster of more than 8 blocks is beyond what
// every such device must offer; the plan asks the device how many it holds.

#include "kernels/cuda/ring_rows.cuh"

namespace normd::norm::cuda {
namespace {

// Cluster instructions exist from 9.0 on; the plan sends no older device here.
[[maybe_unused]] __device__ inline std::uint32_t SharedAddress(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void ClusterSync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
__device__ inline void InitBarrier(std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(barrier)) : "memory");
#endif
}
// Lets the barrier's phase end once `bytes` have come.
__device__ inline void ExpectBytes(std::uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
#endif
}
__device__ inline void AwaitPhase(std::uint64_t* barrier, int phase) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{ .reg .pred p;"
        "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
        "  selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(phase)
        : "memory");
  }
#endif
}
// Sends a word to the same place in block `rank` of the cluster, and its bytes to that barrier.
__device__ inline void SendWord(uint4* place, std::uint64_t* barrier, int rank, const uint4& word) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t to, remote_barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(SharedAddress(place)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote_barrier)
      : "r"(SharedAddress(barrier)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w), "r"(remote_barrier)
      : "memory");
#endif
}

template <typename A>
class ClusterMeeting {
 public:
  using Slot = MeetingSlot<A>;
  static constexpr int kLag = 1;

  __device__ ClusterMeeting(MeetingRoom* room, int blocks, std::uint32_t rows)
      : room_(room), blocks_(blocks), board_(SharedBoard()) {
    tickets_ = rows > 5 * (gridDim.x / blocks);
  }

  // No block sends before all barriers are there.
  __device__ void Begin() {
    if (threadIdx.x == 0) {
      for (std::uint64_t& barrier : board_->barriers) {
        InitBarrier(&barrier);
        ExpectBytes(&barrier, blocks_ * static_cast<int>(sizeof(Slot)));
      }
    }
    ClusterSync();
  }

  __device__ Moments<A> Exchange(const Moments<A>& own, const BlockShares& shares,
                                 std::uint32_t turn, std::uint32_t* next_row) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int rank = static_cast<int>(blockIdx.x) % blocks_;
    const int parity = turn & 1;
    std::uint64_t* const barrier = &board_->barriers[parity];
    uint4* const slots = board_->words[parity];
    const Slot slot = EncodeSlot(own, NextRow(rank, turn));
    if (lane < blocks_) {
#pragma unroll
      for (int i = 0; i < Slot::kWords; ++i) {
        SendWord(slots + rank * Slot::kWords + i, barrier, lane, slot.words[i]);
      }
    }
    AwaitPhase(barrier, turn / 2 & 1);
    LaneSlots<A> all;
#pragma unroll
    for (int i = 0; i < Slot::kWords; ++i) {
      if (lane < blocks_) all.slots[0].words[i] = slots[lane * Slot::kWords + i];
    }
    *next_row = __shfl_sync(kAllLanes, SlotTag(all.slots[0]), 0);
    // Re-armed before this block's next partial goes out, without which no block gets to the turn
    // after the next, which uses the barrier again.
    if (lane == 0) ExpectBytes(barrier, blocks_ * static_cast<int>(sizeof(Slot)));
    __syncwarp();
    return MergeSlots(all, blocks_, shares);
  }

  // No block leaves while another may still write to it.
  __device__ void End() {
    ClusterSync();
    if (tickets_) LeaveRoom(room_, 0);
  }

 private:
  struct Board {
    uint4 words[2][kMaxClusterBlocks * Slot::kWords];
    std::uint64_t barriers[2];
  };
  __device__ static Board* SharedBoard() {
    __shared__ Board board;
    return &board;
  }

  // The row after the next two, which the block of rank 0 tells all. A ticket is fetched two
  // meetings ahead: when the memory is busy that takes about as long as a turn.
  __device__ std::uint32_t NextRow(int rank, std::uint32_t turn) {
    const std::uint32_t clusters = gridDim.x / blocks_;
    const std::uint32_t own = blockIdx.x / blocks_ + (turn + 3) * clusters;
    if (!tickets_ || rank != 0) return own;
    const unsigned ticket = __shfl_sync(kAllLanes, older_ticket_, 0);
    older_ticket_ = newer_ticket_;
    if (threadIdx.x % kLanes == 0) newer_ticket_ = atomicAdd(&room_->next_ticket, 1);
    return turn < 2 ? own : 5 * clusters + ticket;
  }

  MeetingRoom* const room_;
  const int blocks_;
  Board* const board_;
  bool tickets_;
  unsigned newer_ticket_ = 0;  // Being fetched.
  unsigned older_ticket_ = 0;
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

}  // namespace

cudaError_t PrepareClusterRows(DeviceLimits* limits) {
  const cudaError_t error = ForEachRingKernel<ClusterMeetings>([&](auto kernel) {
    const cudaError_t allowed = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return allowed != cudaSuccess ? allowed : AllowSharedBytes(kernel, *limits);
  });
  if (error != cudaSuccess) return error;
  const auto kernel = &RingRows<float, ClusterMeeting<float>, true, false>;
  for (int blocks = 2; blocks <= kMaxClusterBlocks; ++blocks) {
    cudaLaunchAttribute attribute = {};
    const cudaLaunchConfig_t config =
        ClusterConfig(blocks, 1, limits->shared_bytes_per_block - kRingReservedBytes, &attribute);
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // A size that the device does not know: none are resident.
      clusters = 0;
    }
    limits->resident_clusters[blocks] = clusters;
  }
  return cudaSuccess;
}

Status LaunchClusterRows(const Launch& launch) {
  return ForEachRingBatch<ClusterMeetings>(
      launch, "cluster rows", [&](auto kernel, const RowBatch& batch, const RingShape& shape) {
        const int resident = launch.limits.resident_clusters[shape.blocks_per_row];
        cudaLaunchAttribute attribute = {};
        cudaLaunchConfig_t config =
            ClusterConfig(shape.blocks_per_row, std::min<std::uint32_t>(batch.rows, resident),
                          launch.plan.shared_bytes, &attribute);
        config.stream = launch.stream;
        return cudaLaunchKernelEx(&config, kernel, batch, shape,
                                  static_cast<MeetingRoom*>(launch.meeting));
      });
}

}  // namespace normd::norm::cuda
