// A staging ring: the shared memory in which one warp's rows arrive, chunk by chunk.
//
// A warp computes the same run of each of its rows, in chunks of kChunkVectors vectors per lane. It
// loads chunks as soon as slots are free, so loads are in flight while it waits for other blocks
// and while it stores. From 9.0 on one lane loads a whole chunk (cp.async.bulk), elsewhere each
// lane loads its vectors (cp.async). A barrier for each slot counts the bytes that have arrived.

#ifndef NORMD_KERNELS_CUDA_ROWS_STAGING_RING_CUH_
#define NORMD_KERNELS_CUDA_ROWS_STAGING_RING_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/cache_policy.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/row_plan.h"

namespace normd::norm::cuda {

inline constexpr int kStepBytes = kLanes * kVectorBytes;  // A vector of each lane.
inline constexpr int kChunkBytes = kChunkVectors * kStepBytes;

// The arrivals that end a phase of a slot's barrier.
inline constexpr int kSlotArrivals =
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    kLanes;
#else
    1;
#endif

// Loads `bytes` (a multiple of 16, at most a slot's) and ends the slot's phase when they have
// arrived. The warp calls it together, after all its lanes have read the slot: the copy would
// overtake loads that wait behind stores. Both places are addresses in shared memory.
[[maybe_unused]] __device__ inline void AskForChunk(std::uint32_t slot, std::uint32_t barrier,
                                                    const char* from, int bytes, int lane,
                                                    [[maybe_unused]] std::uint64_t policy) {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    ArriveExpecting(barrier, bytes);
    if (bytes > 0) CopyBulk(slot, from, bytes, barrier, policy);
  }
#else
  for (int at = lane * kVectorBytes; at < bytes; at += kStepBytes) {
    CopyToShared(slot + static_cast<std::uint32_t>(at), from + at, policy);
  }
  ArriveWithCopies(barrier);
#endif
}

// One warp's run of one row.
template <bool kAligned>
struct StagedRun {
  const char* x = nullptr;
  int bytes = 0;   // Bytes of the run that exist.
  int shift = 0;   // The begin of the run in its first aligned vector.
  int staged = 0;  // From that vector on: the whole vectors that contain the run's bytes.

  StagedRun() = default;
  __device__ StagedRun(const Row& row, std::int64_t begin, int run_bytes) : x(row.x + begin) {
    const int most = ClampToRun(row.bytes - begin, run_bytes);
    bytes = min(most, run_bytes);
    if (kAligned) return;
    shift = bytes == 0 ? 0 : Misalignment(x);
    staged = min(most + shift, run_bytes + (shift == 0 ? 0 : kVectorBytes)) & -kVectorBytes;
  }

  __device__ int chunks() const { return (bytes + kChunkBytes - 1) / kChunkBytes; }

  // A lane's vectors of chunk `index`, which has arrived. After the run they are undefined if rows
  // are aligned, and zero otherwise.
  template <typename T>
  __device__ void Read(std::uint32_t slot, int index, int lane,
                       Vector (&chunk)[kChunkVectors]) const {
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      const int place = i * kStepBytes + lane * kVectorBytes;
      const int offset = index * kChunkBytes + place;
      // The last elements of a row may share their vector with the next row.
      if (!kAligned && offset + kVectorBytes + shift > staged) {
        chunk[i] = LoadHead<T>(x + offset, max(0, min(bytes - offset, kVectorBytes)));
        continue;
      }
      chunk[i] = ReadShared(slot + place);
      if (kAligned || shift == 0) continue;
      chunk[i] = ShiftDown<T>(chunk[i], ReadShared(slot + place + kVectorBytes), shift);
    }
  }
};

// The rows of a block, by turn. Those of the next kLookahead turns are always known.
inline constexpr int kLookahead = 5;
struct RowQueue {
  std::uint32_t rows[8];

  __device__ std::uint32_t OfTurn(std::uint32_t turn) const {
    return const_cast<const volatile std::uint32_t*>(rows)[turn % 8];
  }
};

// The part of each row that a warp computes, and the place of its ring.
struct StagingPlace {
  std::int64_t begin;  // The begin of the warp's run in every row, in bytes.
  int run_bytes;
  int slots;
  std::uint32_t none;      // 0, which the compiler does not know.
  std::uint32_t ring;      // Slots of SlotBytes in shared memory.
  std::uint32_t barriers;  // One of 8 bytes for each.
  std::uint64_t policy;    // The L2 policy of the loads.
};

// Every lane of the warp holds the same. A chunk's cost delays every load, so filling a free slot
// takes few instructions; a row's cost is paid once per row.
template <bool kAligned>
class StagingRing {
 public:
  __device__ StagingRing(const RowBatch& batch, const StagingPlace& place, const RowQueue& queue)
      : batch_(batch),
        place_(place),
        queue_(queue),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        free_(place.slots) {
    for (int i = lane_; i < place.slots; i += kLanes) {
      InitBarrier(place.barriers + i * 8, kSlotArrivals);
      PublishBarriers();
    }
    __syncwarp();
  }

  __device__ StagedRun<kAligned> RunOf(const Row& row) const {
    return StagedRun<kAligned>(row, place_.begin, place_.run_bytes);
  }

  // Loads chunks into the free slots, of rows up to those of turn `known`, and finds the row that
  // follows.
  __device__ void Fill(std::uint32_t known) {
    do {
      while (next_.bytes == 0 && turn_ <= known) {
        const std::uint32_t row = queue_.OfTurn(turn_++);
        if (row < batch_.rows) next_ = Asked(RunOf(FindRow(batch_, row)));
      }
    } while (AskForOne());
  }

  // Loads one chunk, if a slot is free and Fill has found one.
  __device__ bool AskForOne() {
    if (free_ == 0) return false;
    if (asked_.bytes == 0) {
      if (next_.bytes == 0) return false;
      asked_ = next_;
      next_.bytes = 0;
    }
    const int bytes = min(asked_.bytes, kChunkBytes);
    int staged = bytes;
    if constexpr (!kAligned) {
      staged = max(0, min(asked_.staged, kChunkBytes + asked_.beyond));
      asked_.staged -= kChunkBytes;
    }
    AskForChunk(place_.ring + ask_slot_ * kSlotBytes + read_, place_.barriers + ask_slot_ * 8,
                asked_.from, staged, lane_, place_.policy);
    asked_.from += kChunkBytes;
    asked_.bytes -= bytes;
    ask_slot_ = Next(ask_slot_);
    --free_;
    return true;
  }

  // First visit of the chunks of the current row, in order of arrival: waits for the next one.
  __device__ std::uint32_t Await() {
    AwaitBarrier(place_.barriers + wait_slot_ * 8, wait_parity_);
    const std::uint32_t slot = place_.ring + wait_slot_ * kSlotBytes;
    wait_slot_ = Next(wait_slot_);
    wait_parity_ ^= wait_slot_ == 0 ? 1 : 0;
    return slot;
  }
  // Second visit of the chunks.
  __device__ std::uint32_t Again() const { return place_.ring + free_slot_ * kSlotBytes; }
  // Frees the slot, once every lane has read `chunk` from it. Loads have finished when their
  // results are used, so the next load's address is made to depend on them, without effect.
  __device__ void Free(const Vector (&chunk)[kChunkVectors]) {
    read_ = 0;
#pragma unroll
    for (const Vector& vector : chunk) read_ |= vector.w;
    read_ &= place_.none;
    free_slot_ = Next(free_slot_);
    ++free_;
  }

 private:
  // The pending loads of a row.
  struct Asked {
    const char* from = nullptr;  // Aligned to 16.
    int bytes = 0;               // Bytes of the run that exist.
    int staged = 0;              // Whole vectors.
    int beyond = 0;              // Bytes after a chunk that it needs.

    Asked() = default;
    __device__ explicit Asked(const StagedRun<kAligned>& run)
        : from(run.x - run.shift),
          bytes(run.bytes),
          staged(run.staged),
          beyond(run.shift == 0 ? 0 : kVectorBytes) {}
  };

  static constexpr int kSlotBytes = SlotBytes(kAligned);

  __device__ int Next(int slot) const { return slot + 1 == place_.slots ? 0 : slot + 1; }

  const RowBatch& batch_;
  const StagingPlace place_;
  const RowQueue& queue_;
  const int lane_;
  Asked asked_;
  Asked next_;              // The row after it; no bytes if it is not known.
  std::uint32_t turn_ = 0;  // The turn of the row after that.
  std::uint32_t read_ = 0;
  int ask_slot_ = 0;
  int wait_slot_ = 0;
  std::uint32_t wait_parity_ = 0;
  int free_slot_ = 0;  // The slot that becomes free next.
  int free_;           // Slots without a pending load.
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_STAGING_RING_CUH_
