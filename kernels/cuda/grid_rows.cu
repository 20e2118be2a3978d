// Rows spread over co-resident blocks that meet in global memory: rows that no cluster holds, or
// that clusters would leave multiprocessors idle for. ring_rows.cuh tells the rest.
//
// The launch is cooperative, so all its blocks are resident at once and none waits for one that
// cannot start, whatever else runs on the device. Blocks publish a slot of 16 bytes and poll the
// others' (32 bytes in double): 16 K^2 bytes of L2 traffic per row of K blocks, 1.6% of the row at
// K = 128. The last block to leave zeroes the slots, so each launch begins with epoch 1.

#include "kernels/cuda/ring_rows.cuh"

namespace normd::norm::cuda {
namespace {

__device__ inline void StoreRelaxed(uint4* to, const uint4& word) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x),
               "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}
__device__ inline uint4 LoadRelaxed(const uint4* from) {
  uint4 word;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}

template <typename A>
class GridMeeting {
 public:
  using Slot = MeetingSlot<A>;
  static constexpr int kLag = 2;

  __device__ GridMeeting(MeetingRoom* room, int blocks, std::uint32_t)
      : room_(room), blocks_(blocks) {}

  __device__ void Begin() {}

  // Teams are large and few, and mix fast and slow multiprocessors: their rows follow from their
  // number.
  __device__ Moments<A> Exchange(const Moments<A>& own, const BlockShares& shares,
                                 std::uint32_t turn, std::uint32_t* next_row) {
    const std::uint32_t team = blockIdx.x / blocks_;
    const int rank = static_cast<int>(blockIdx.x) % blocks_;
    const std::uint32_t epoch = turn + 1;
    uint4* const slots = room_->words + (team * 2 + (turn & 1)) * blocks_ * Slot::kWords;
    const Slot slot = EncodeSlot(own, epoch);
    if (threadIdx.x % kLanes == 0) {
#pragma unroll
      for (int i = 0; i < Slot::kWords; ++i) {
        StoreRelaxed(slots + rank * Slot::kWords + i, slot.words[i]);
      }
    }
    *next_row = team + (turn + 3) * (gridDim.x / blocks_);
    const LaneSlots<A> all = AwaitSlots<A>(blocks_, epoch, [&](int other) {
      Slot read;
#pragma unroll
      for (int i = 0; i < Slot::kWords; ++i) {
        read.words[i] = LoadRelaxed(slots + other * Slot::kWords + i);
      }
      return read;
    });
    return MergeSlots(all, blocks_, shares);
  }

  __device__ void End() { LeaveRoom(room_, gridDim.x * 2 * Slot::kWords); }

 private:
  MeetingRoom* const room_;
  const int blocks_;
};

struct GridMeetings {
  template <typename A>
  using Of = GridMeeting<A>;
};

}  // namespace

cudaError_t PrepareGridRows(const DeviceLimits& limits) {
  return ForEachRingKernel<GridMeetings>(
      [&](auto kernel) { return AllowSharedBytes(kernel, limits); });
}

Status LaunchGridRows(const Launch& launch) {
  return ForEachRingBatch<GridMeetings>(
      launch, "grid rows", [&](auto kernel, const RowBatch& batch, const RingShape& shape) {
        const auto teams = std::min<std::uint32_t>(
            batch.rows, launch.limits.multiprocessors / shape.blocks_per_row);
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(teams * shape.blocks_per_row);
        config.blockDim = dim3(kRingThreads);
        config.dynamicSmemBytes = launch.plan.shared_bytes;
        config.stream = launch.stream;
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = 1;
        config.attrs = &attribute;
        config.numAttrs = 1;
        return cudaLaunchKernelEx(&config, kernel, batch, shape,
                                  static_cast<MeetingRoom*>(launch.meeting));
      });
}

}  // namespace normd::norm::cuda
