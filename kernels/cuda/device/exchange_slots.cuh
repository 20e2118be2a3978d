// Partial statistics that the blocks of a row exchange, in slots with one writer each.
//
// A block that has read the others' slots of one turn knows that all blocks have written them, and
// so that all have read those of the turn before. Sets of slots are therefore used in turns, two if
// a block reads a turn's before it writes the next. Where readers poll, a slot carries its epoch in
// the same 16-byte access as the partial, so a reader that sees the epoch sees the partial. The
// access orders nothing else, and the store waits for none of the block's other traffic.

#ifndef NORMD_KERNELS_CUDA_DEVICE_EXCHANGE_SLOTS_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_EXCHANGE_SLOTS_CUH_

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/statistics.cuh"

namespace normd::norm::cuda {

// A block's partial with a tag: an epoch, or the number of a row. It takes one word of 16 bytes in
// float and two in double, which rounds the mean to one number.
template <typename A>
struct ExchangeSlot {
  static constexpr int kWords = sizeof(A) == sizeof(double) ? 2 : 1;
  uint4 words[kWords];
};

template <typename A>
__device__ inline ExchangeSlot<A> EncodeSlot(const Moments<A>& partial, std::uint32_t tag) {
  ExchangeSlot<A> slot;
  if constexpr (sizeof(A) == sizeof(double)) {
    const double mean = partial.reference + partial.mean;
    slot.words[0] = make_uint4(__double2loint(mean), __double2hiint(mean), tag, 0);
    slot.words[1] = make_uint4(__double2loint(partial.m2), __double2hiint(partial.m2), tag, 0);
  } else {
    slot.words[0] = make_uint4(__float_as_uint(partial.reference), __float_as_uint(partial.mean),
                               __float_as_uint(partial.m2), tag);
  }
  return slot;
}

template <typename A>
__device__ inline bool HasEpoch(const ExchangeSlot<A>& slot, std::uint32_t epoch) {
  if constexpr (sizeof(A) == sizeof(double)) {
    return slot.words[0].z == epoch && slot.words[1].z == epoch;
  } else {
    return slot.words[0].w == epoch;
  }
}

template <typename A>
__device__ inline Moments<A> DecodeSlot(const ExchangeSlot<A>& slot, A count) {
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

// The division of a row's elements among its blocks.
struct BlockShares {
  std::int64_t elements;   // The whole row.
  std::int64_t per_block;  // Elements of every block but the last.

  template <typename A>
  __device__ A Count(int rank) const {
    const std::int64_t left = elements - rank * per_block;
    return static_cast<A>(left <= 0 ? 0 : left < per_block ? left : per_block);
  }
};

// A lane's part of the slots of many writers: those of ranks lane, lane + 32, ...
template <typename A, int kCount>
struct LaneSlots {
  ExchangeSlot<A> slots[kCount];
};

// Merges slots in a fixed order; every lane gets the row's moments.
template <typename A, int kCount>
__device__ inline Moments<A> MergeSlots(const LaneSlots<A, kCount>& own, int blocks,
                                        const BlockShares& shares, bool) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  Moments<A> partials[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int rank = i * kLanes + lane;
    if (rank < blocks) partials[i] = DecodeSlot(own.slots[i], shares.Count<A>(rank));
  }
  const SetMerge<A> merge(__shfl_sync(kAllLanes, partials[0].reference, 0));
  A sum = 0;
#pragma unroll
  for (const Moments<A>& partial : partials) sum = merge.AddMean(partial, sum);
  const A count = static_cast<A>(shares.elements);
  const A mean = Quotient(GroupSum(sum, kLanes), count);
  A m2 = 0;
#pragma unroll
  for (const Moments<A>& partial : partials) m2 += merge.M2(partial, mean);
  return merge.Result(count, mean, GroupSum(m2, kLanes));
}
template <typename A, int kCount>
__device__ inline Moments<A> MergeSlots(const LaneSlots<A, kCount>& own, int blocks,
                                        const BlockShares& shares, Statistics statistics) {
  Moments<A> merged;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int rank = i * kLanes + static_cast<int>(threadIdx.x) % kLanes;
    if (rank >= blocks) continue;
    merged = MergeStatistics(statistics, merged, DecodeSlot(own.slots[i], A(0)));
  }
  return MergeStatistics(statistics, merged, static_cast<A>(shares.elements), kLanes);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_EXCHANGE_SLOTS_CUH_
