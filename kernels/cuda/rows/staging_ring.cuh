// A staging ring: where one warp's rows arrive, chunk by chunk, in shared memory.
//
// A warp computes the same run of each of its rows, in chunks of kChunkVectors vectors a
// lane. It asks for chunks of rows to come as soon as it has freed a slot, so loads are under way
// while it waits for other blocks and while it stores. On 9.0 and later one lane asks for a whole
// chunk (cp.async.bulk), elsewhere each lane for its vectors (cp.async). A barrier for each slot
// counts what has come.

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

// Arrivals that end a phase of a slot's barrier.
inline constexpr int kSlotArrivals =
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    kLanes;
#else
    1;
#endif

// Asks for `bytes` (a multiple of 16, at most a slot's) and lets the slot's phase end with them.
// The warp calls it together, after all its lanes have read what the slot held: the copy would
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
  int bytes = 0;   // So many of the run exist.
  int shift = 0;   // Where the run begins in its first aligned vector.
  int staged = 0;  // From that vector on: the whole vectors that hold the run's bytes.

  StagedRun() = default;
  __device__ StagedRun(const Row& row, std::int64_t begin, int run_bytes) : x(row.x + begin) {
    const int most = ClampToRun(row.bytes - begin, run_bytes);
    bytes = min(most, run_bytes);
    if (kAligned) return;
    shift = bytes == 0 ? 0 : Misalignment(x);
    staged = min(most + shift, run_bytes + (shift == 0 ? 0 : kVectorBytes)) & -kVectorBytes;
  }

  __device__ int chunks() const { return (bytes + kChunkBytes - 1) / kChunkBytes; }

  // A lane's vectors of chunk `index`, which has come; what lies behind the run is anything where
  // rows are aligned, and zero otherwise.
  template <typename T>
  __device__ void Read(std::uint32_t slot, int index, int lane,
                       Vector (&chunk)[kChunkVectors]) const {
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      const int place = i * kStepBytes + lane * kVectorBytes;
      const int offset = index * kChunkBytes + place;
      // The last elements of a row may lie in a vector that is not its own alone.
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

// Which part of each row a warp computes, and where its ring is.
struct StagingPlace {
  std::int64_t begin;  // Where the warp's run begins in every row, in bytes.
  int run_bytes;
  int slots;
  std::uint32_t none;      // 0, which the compiler does not know.
  std::uint32_t ring;      // Slots of SlotBytes in shared memory.
  std::uint32_t barriers;  // One of 8 bytes for each.
  std::uint64_t policy;    // What the L2 cache does with what arrives.
};

// Every lane of the warp holds the same. What each chunk costs is on the way of every load, so a
// free slot is asked for with few instructions; what a row costs is paid once a row.
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

  // Asks for what the free slots hold, of rows up to those of turn `known`, and finds the row that
  // follows.
  __device__ void Fill(std::uint32_t known) {
    do {
      while (next_.bytes == 0 && turn_ <= known) {
        const std::uint32_t row = queue_.OfTurn(turn_++);
        if (row < batch_.rows) next_ = Asked(RunOf(FindRow(batch_, row)));
      }
    } while (AskForOne());
  }

  // Asks for one chunk, if a slot is free and Fill has found one.
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

  // Visits the chunks of the row at hand, first in the order that they come: waits for the next.
  __device__ std::uint32_t Await() {
    AwaitBarrier(place_.barriers + wait_slot_ * 8, wait_parity_);
    const std::uint32_t slot = place_.ring + wait_slot_ * kSlotBytes;
    wait_slot_ = Next(wait_slot_);
    wait_parity_ ^= wait_slot_ == 0 ? 1 : 0;
    return slot;
  }
  // Then once more.
  __device__ std::uint32_t Again() const { return place_.ring + free_slot_ * kSlotBytes; }
  // And frees it, once every lane has read `chunk` from it. Loads are over when their results are
  // used, so the address that is asked for next is made to depend on them, by nothing.
  __device__ void Free(const Vector (&chunk)[kChunkVectors]) {
    read_ = 0;
#pragma unroll
    for (const Vector& vector : chunk) read_ |= vector.w;
    read_ &= place_.none;
    free_slot_ = Next(free_slot_);
    ++free_;
  }

 private:
  // What is to be asked for of a row.
  struct Asked {
    const char* from = nullptr;  // Aligned to 16.
    int bytes = 0;               // So many of the run are there.
    int staged = 0;              // Whole vectors.
    int beyond = 0;              // Bytes behind a chunk that it needs.

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
  std::uint32_t turn_ = 0;  // The one of the row after that.
  std::uint32_t read_ = 0;
  int ask_slot_ = 0;
  int wait_slot_ = 0;
  std::uint32_t wait_parity_ = 0;
  int free_slot_ = 0;  // The next to become free.
  int free_;           // Slots that nothing has been asked for.
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_STAGING_RING_CUH_
