// How the warps that share a row over a thread-block cluster exchange partials: through slots in
// every block's shared memory (exchange_slots.cuh).
//
// Each warp sends its partial to each block of the cluster (st.async): 16 bytes that also carry the
// team's next row. A block's barrier counts the bytes that have arrived, so nothing is fenced and
// no warp waits for its stores. A warp that has collected a turn's partials knows that all warps
// have sent them, and so that all have collected those of the turn before: turns alternate between
// two sets of slots. Partials are in float.

#ifndef NORMD_KERNELS_CUDA_ROWS_CLUSTER_EXCHANGE_CUH_
#define NORMD_KERNELS_CUDA_ROWS_CLUSTER_EXCHANGE_CUH_

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/exchange_slots.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace normd::norm::cuda {

// The warps of a cluster that share rows, as one of them sees them.
struct ClusterTeam {
  int blocks;           // Blocks of the cluster.
  int warps;            // Warps of each block.
  int block;            // The caller's block.
  int warp;             // The caller's place in it.
  std::uint32_t slots;  // Two sets with one slot for each warp, in each block at the same address.
  std::uint32_t set_bytes;
  std::uint32_t barriers;  // One for each set, which waits for one arrival.

  __device__ int size() const { return blocks * warps; }
  __device__ int rank() const { return block * warps + warp; }
};

// The most warps that share a row.
inline constexpr int kMaxTeamWarps = 128;

// One for each warp of the team, which calls it with all lanes.
class ClusterExchange {
 public:
  __device__ explicit ClusterExchange(const ClusterTeam& team)
      : team_(team), lane_(static_cast<int>(threadIdx.x) % kLanes) {}

  // Sends the warp's partial. `next` is the row of the next turn, which the warp of rank 0 knows.
  __device__ void Send(const Moments<float>& own, std::uint32_t next, std::uint32_t turn) const {
    const std::uint32_t barrier = Barrier(turn);
    if (team_.warp == 0 && lane_ == 0) ArriveExpecting(barrier, team_.size() * kVectorBytes);
    if (lane_ >= team_.blocks) return;
    const uint4 word = EncodeSlot(own, next).words[0];
    const std::uint32_t slot_there = PlaceInBlock(Slot(turn, team_.rank()), lane_);
    StoreInBlock(slot_there, word, PlaceInBlock(barrier, lane_));
  }

  // Waits for the partials of all warps and merges them. *next is the row of the next turn.
  template <typename AnyStatistics>
  __device__ Moments<float> Collect(const BlockShares& shares, AnyStatistics statistics,
                                    std::uint32_t turn, std::uint32_t* next) const {
    AwaitBarrierOfCluster(Barrier(turn), turn / 2 % 2);
    LaneSlots<float, kMaxTeamWarps / kLanes> own = {};
#pragma unroll
    for (int i = 0; i < kMaxTeamWarps / kLanes; ++i) {
      const int rank = i * kLanes + lane_;
      if (rank < team_.size()) own.slots[i].words[0] = ReadShared(Slot(turn, rank));
    }
    *next = __shfl_sync(kAllLanes, own.slots[0].words[0].w, 0);
    return MergeSlots(own, team_.size(), shares, statistics);
  }

 private:
  __device__ std::uint32_t Barrier(std::uint32_t turn) const {
    return team_.barriers + turn % 2 * static_cast<std::uint32_t>(sizeof(std::uint64_t));
  }
  __device__ std::uint32_t Slot(std::uint32_t turn, int rank) const {
    return team_.slots + turn % 2 * team_.set_bytes + rank * kVectorBytes;
  }

  const ClusterTeam& team_;
  const int lane_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_CLUSTER_EXCHANGE_CUH_
