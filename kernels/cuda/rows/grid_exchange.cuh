// How the blocks of a row exchange partials: through slots in global memory (exchange_slots.cuh).
//
// A block publishes its partial of turn t before it collects those of turn t - 1, which have been
// in flight for a turn by then: a block waits only if another one is a turn behind. So a block may
// publish for turn t while another still reads turn t - 2, and turns use four sets of slots: a
// block that has collected turn t - 2 knows that all have published it, which they do after they
// have collected turn t - 4.
//
// Slots are 16 bytes (32 in double) in the L2 cache: with K blocks, each block reads 16 (K + 1)
// bytes for each row, 0.1% of the row at K = 11, 1.3% at K = 128.

#ifndef NORMD_KERNELS_CUDA_ROWS_GRID_EXCHANGE_CUH_
#define NORMD_KERNELS_CUDA_ROWS_GRID_EXCHANGE_CUH_

#include "kernels/cuda/device/exchange_slots.cuh"
#include "kernels/cuda/device/relaxed_memory.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/staging_ring.cuh"
#include "kernels/cuda/rows/work_counter.cuh"

namespace normd::norm::cuda {

inline constexpr int kSlotSets = 4;

// The words of the area that a team of `blocks` uses: a slot for each block, and one for the row
// that rank 0 announces.
template <typename A>
constexpr unsigned TeamWords(unsigned blocks) {
  return kSlotSets * (blocks + 1) * ExchangeSlot<A>::kWords;
}

// One warp of each block calls it.
template <typename A>
class GridExchange {
 public:
  using Slot = ExchangeSlot<A>;

  __device__ GridExchange(ExchangeArea* area, int blocks, std::uint32_t rows)
      : area_(area),
        blocks_(blocks),
        rank_(static_cast<int>(blockIdx.x) % blocks),
        team_(blockIdx.x / blocks),
        teams_(gridDim.x / blocks),
        dynamic_(rows > (kLookahead + 2) * (gridDim.x / blocks)) {}

  // Announces the block's partial, and the row of turn + kLookahead.
  __device__ void Publish(const Moments<A>& own, std::uint32_t turn) {
    const std::uint32_t tag = turn + 1;
    uint4* const slots = Slots(turn);
    const std::uint32_t row = rank_ == 0 ? RowAhead(turn) : 0;
    if (threadIdx.x % kLanes != 0) return;
    const Slot slot = EncodeSlot(own, tag);
#pragma unroll
    for (int i = 0; i < Slot::kWords; ++i) {
      StoreRelaxed(slots + rank_ * Slot::kWords + i, slot.words[i]);
    }
    if (rank_ != 0) return;
#pragma unroll
    for (int i = 0; i < Slot::kWords; ++i) {
      StoreRelaxed(slots + blocks_ * Slot::kWords + i, make_uint4(row, 0, tag, tag));
    }
  }

  // Reads the partials published for a turn; returns whether all blocks have published theirs.
  __device__ bool Ask(std::uint32_t turn) {
    ForOwnSlots([&](Slot& slot, int place) {
#pragma unroll
      for (int i = 0; i < Slot::kWords; ++i) {
        slot.words[i] = LoadRelaxed(Slots(turn) + place * Slot::kWords + i);
      }
    });
    bool misses = false;
    ForOwnSlots([&](Slot& slot, int) { misses |= !HasEpoch(slot, turn + 1); });
    return !__any_sync(kAllLanes, misses);
  }

  // Merges the partials that Ask has read. *next is the row of turn + kLookahead.
  template <typename AnyStatistics>
  __device__ Moments<A> Collect(const BlockShares& shares, AnyStatistics statistics,
                                std::uint32_t* next) {
    std::uint32_t row = 0;
    ForOwnSlots([&](Slot& slot, int place) {
      if (place == blocks_) row = slot.words[0].x;
    });
    *next = __shfl_sync(kAllLanes, row, blocks_ % kLanes);
    return MergeSlots(asked_, blocks_, shares, statistics);
  }

 private:
  static constexpr int kLaneSlots = kMaxRowBlocks / kLanes + 1;

  __device__ uint4* Slots(std::uint32_t turn) const {
    return area_->words + team_ * TeamWords<A>(blocks_) +
           turn % kSlotSets * (blocks_ + 1) * Slot::kWords;
  }

  template <typename Function>
  __device__ void ForOwnSlots(Function function) {
#pragma unroll
    for (int i = 0; i < kLaneSlots; ++i) {
      const int place = i * kLanes + static_cast<int>(threadIdx.x) % kLanes;
      if (place <= blocks_) function(asked_.slots[i], place);
    }
  }

  // A team's first rows follow from its number, the others from the work counter
  // (work_counter.cuh), drawn two turns before they are announced.
  __device__ std::uint32_t RowAhead(std::uint32_t turn) {
    const std::uint32_t own = team_ + (turn + kLookahead) * teams_;
    if (!dynamic_) return own;
    const unsigned drawn = older_;
    older_ = newer_;
    if (threadIdx.x % kLanes == 0) newer_ = atomicAdd(&area_->next_row, 1);
    return turn < 2 ? own : (kLookahead + 2) * teams_ + drawn;
  }

  ExchangeArea* const area_;
  const int blocks_;
  const int rank_;
  const std::uint32_t team_;
  const std::uint32_t teams_;
  const bool dynamic_;
  LaneSlots<A, kLaneSlots> asked_;
  unsigned newer_ = 0;  // In flight.
  unsigned older_ = 0;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_GRID_EXCHANGE_CUH_
