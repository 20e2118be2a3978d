// Where the blocks that share a row exchange their partial statistics.
//
// A meeting has one slot for each block. A block writes its slot once per row: partial and epoch
// together in one 16-byte store, so that a reader that sees the epoch sees the partial. Nothing
// else is ordered by it, so the store can be relaxed and waits for none of the block's other
// traffic. There are two sets of slots, for even and odd epochs: a block writes epoch e + 2 only
// after it has read all slots of e + 1, which every block writes after it has read all slots of e.

#ifndef NORMD_KERNELS_CUDA_MEETING_CUH_
#define NORMD_KERNELS_CUDA_MEETING_CUH_

#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/numeric.cuh"

namespace norm::cuda {

// A block's partial: the mean as an unrounded sum of two, and the sum of squared deviations.
// In float it shares its 16 bytes with the epoch; in double it takes two words of 16 bytes.
template <typename A>
struct MeetingSlot {
  static constexpr int kWords = sizeof(A) == sizeof(double) ? 2 : 1;
  uint4 words[kWords];
};

template <typename A>
__device__ inline MeetingSlot<A> EncodeSlot(const Moments<A>& partial, std::uint32_t epoch) {
  MeetingSlot<A> slot;
  const A mean = partial.reference + partial.mean;
  if constexpr (sizeof(A) == sizeof(double)) {
    slot.words[0] = make_uint4(__double2loint(mean), __double2hiint(mean), epoch, 0);
    slot.words[1] = make_uint4(__double2loint(partial.m2), __double2hiint(partial.m2), epoch, 0);
  } else {
    const A back = mean - partial.reference;
    const A residue = (partial.reference - (mean - back)) + (partial.mean - back);
    slot.words[0] = make_uint4(__float_as_uint(mean), __float_as_uint(residue),
                               __float_as_uint(partial.m2), epoch);
  }
  return slot;
}

template <typename A>
__device__ inline bool HasEpoch(const MeetingSlot<A>& slot, std::uint32_t epoch) {
  if constexpr (sizeof(A) == sizeof(double)) {
    return slot.words[0].z == epoch && slot.words[1].z == epoch;
  } else {
    return slot.words[0].w == epoch;
  }
}

template <typename A>
__device__ inline Moments<A> DecodeSlot(const MeetingSlot<A>& slot, A count) {
  Moments<A> partial;
  if constexpr (sizeof(A) == sizeof(double)) {
    partial.reference = __hiloint2double(slot.words[0].y, slot.words[0].x);
    partial.m2 = __hiloint2double(slot.words[1].y, slot.words[1].x);
  } else {
    partial.reference = __uint_as_float(slot.words[0].x);
    partial.mean = __uint_as_float(slot.words[0].y);
    partial.m2 = __uint_as_float(slot.words[0].z);
  }
  partial.count = count;
  return partial;
}

// Blocks of one row that a meeting can hold: 6 for each lane of the warp that reads the slots.
inline constexpr int kMaxSlotsPerLane = 6;

// How the elements of a row fall to its blocks.
struct BlockShares {
  std::int64_t elements;   // Of the row.
  std::int64_t per_block;  // Of every block but the last.

  template <typename A>
  __device__ A Count(int rank) const {
    const std::int64_t left = elements - rank * per_block;
    return static_cast<A>(left <= 0 ? 0 : left < per_block ? left : per_block);
  }
};

// Reads the slots of `blocks` blocks with one warp, waiting for each to have `epoch`, and merges
// them in a fixed order. read(rank) loads a slot with relaxed ordering.
template <typename A, typename Read>
__device__ inline Moments<A> MergeSlots(int blocks, const BlockShares& shares, std::uint32_t epoch,
                                        Read read) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  Moments<A> partials[kMaxSlotsPerLane];
  bool missing = true;
  MeetingSlot<A> slots[kMaxSlotsPerLane];
  while (missing) {
    missing = false;
#pragma unroll
    for (int i = 0; i < kMaxSlotsPerLane; ++i) {
      if (i * kLanes + lane < blocks) slots[i] = read(i * kLanes + lane);
    }
#pragma unroll
    for (int i = 0; i < kMaxSlotsPerLane; ++i) {
      if (i * kLanes + lane < blocks && !HasEpoch(slots[i], epoch)) missing = true;
    }
  }
#pragma unroll
  for (int i = 0; i < kMaxSlotsPerLane; ++i) {
    const int rank = i * kLanes + lane;
    if (rank < blocks) partials[i] = DecodeSlot(slots[i], shares.Count<A>(rank));
  }
  __syncwarp();

  Moments<A> row;
  row.reference = __shfl_sync(kAllLanes, partials[0].reference, 0);
  row.count = static_cast<A>(shares.elements);
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxSlotsPerLane; ++i) {
    if (partials[i].count > 0) {
      partials[i].mean += partials[i].reference - row.reference;
      sum += partials[i].mean * partials[i].count;
    }
  }
  row.mean = GroupSum(sum, kLanes) / row.count;
  A m2 = 0;
#pragma unroll
  for (int i = 0; i < kMaxSlotsPerLane; ++i) {
    if (partials[i].count > 0) {
      const A deviation = partials[i].mean - row.mean;
      m2 += partials[i].m2 + partials[i].count * deviation * deviation;
    }
  }
  row.m2 = GroupSum(m2, kLanes);
  return row;
}

}  // namespace norm::cuda

#endif  // NORMD_KERNELS_CUDA_MEETING_CUH_
