// The body of the two kernels that hold channels-last strips on chip (strip_plan.h). They
// differ in how the blocks that share a strip exchange their partial statistics.
//
// Phases, strip after strip: each thread sums its vectors as they arrive and leaves one partial per
// group. A warp per group merges the block's partials, sends the result to the other blocks, and
// merges theirs in the order of the blocks. Each thread scales and stores its vectors, and loads a
// vector of the next strip into each place that it has emptied, so that loads and stores overlap.
// Places are the thread's own: only the partials need barriers.

#ifndef NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIP_WORKER_CUH_
#define NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIP_WORKER_CUH_

#include "kernels/cuda/channels_last/columns.cuh"
#include "kernels/cuda/channels_last/strips.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/row_batch.cuh"

namespace normd::norm::cuda {

// One thread's part in the work of its block, strip after strip.
//
// `Exchange` exchanges partials. One warp for each group calls Send(group, the block's partial)
// and, after all its Sends, Receive(group, elements of block k for lane k), which gives lane k the
// partial of block k. All threads call AwaitPeers before the first Send and Next after each strip.
template <typename T, int kParts, bool kAligned, int kHeld, typename Exchange>
class StripWorker {
 public:
  using A = Accumulator<T>;

  __device__ StripWorker(const RowBatch& batch, const StripPlan& plan, char* memory, int rank,
                         Exchange& exchange)
      : batch_(batch),
        plan_(plan),
        rank_(rank),
        exchange_(exchange),
        channels_(static_cast<int>(batch.channels_per_group)),
        shared_(memory, plan, channels_, kParts),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        warp_(static_cast<int>(threadIdx.x) / kLanes),
        warps_(static_cast<int>(blockDim.x) / kLanes),
        group_channels_(channels_ / plan.groups),
        thread_(MakeStripThread<T>(plan, channels_)),
        present_(kAligned ? kCount : thread_.present),
        slots_(plan.vectors - kHeld),
        chunks_((slots_ + kChunk - 1) / kChunk),
        slot_(shared_.slots + threadIdx.x) {}

  // Computes strips first, first + step, ...
  __device__ void Run(std::uint32_t first, std::uint32_t step) {
    strip_ = FindStrip<T>(batch_, first);
    column_ = FindStripColumn<T>(plan_, thread_, strip_, rank_);
    Fetch();
    for (std::uint32_t index = first;;) {
      LeavePartials();
      __syncthreads();
      if (index == first) exchange_.AwaitPeers();
      SendPartials();
      LoadParams();
      ReceivePartials();
      exchange_.Next();
      __syncthreads();
      ColumnScale<T, kParts> scale;
      FindScale(&scale);
      index += step;
      StripColumn next = {};
      if (index < batch_.rows) {
        strip_ = FindStrip<T>(batch_, index);
        next = FindStripColumn<T>(plan_, thread_, strip_, rank_);
      }
      StoreAndFetch(scale, next);
      if (index >= batch_.rows) break;
      column_ = next;
    }
  }

 private:
  static constexpr int kCount = kPerVector<T>;

  __device__ Vector Load(const StripColumn& from, const char* address) const {
    return kAligned ? LoadVector(address) : LoadColumn<T>(address, present_, from.x_width);
  }

  // Starts loading the first strip's vectors.
  __device__ void Fetch() {
    const char* address = column_.x;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held_[i] = i < column_.count ? Load(column_, address) : make_uint4(0, 0, 0, 0);
      address += column_.step;
    }
    for (int i = 0; i < slots_; ++i) {
      if (i + kHeld < column_.count) {
        CopyVector<T, kAligned>(slot_ + i * plan_.threads, address, present_, column_.x_width);
      }
      address += column_.step;
      if (i % kChunk == kChunk - 1) EndCopyGroup();
    }
    if (slots_ % kChunk != 0) EndCopyGroup();
  }

  // Sums the vectors as they arrive and leaves the partials in shared memory.
  __device__ void LeavePartials() {
    if constexpr (kHeld == 0) AwaitCopyGroups(chunks_ - 1);
    Vector first = held_[0], second;
    if constexpr (kHeld == 0) first = *slot_;
    second = first;
    if (column_.count > 1) {
      if constexpr (kHeld > 1) {
        second = held_[1];
      } else {
        second = slot_[plan_.threads];
      }
    }
    ColumnSums<T, kParts> sums(batch_.centered, thread_.left_in_group, first, second);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i < column_.count) sums.Add(held_[i]);
    }
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      AwaitCopyGroups(chunks_ - 1 - chunk);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const int at = chunk * kChunk + i;
        if (at + kHeld < column_.count) sums.Add(slot_[at * plan_.threads]);
      }
    }
    if (thread_.row >= plan_.rows) return;
    Moments<A> partials[kParts];
    sums.Finish(column_.count, partials);
#pragma unroll
    for (int i = 0; i < kParts; ++i) shared_.threads[threadIdx.x * kParts + i] = partials[i];
  }

  __device__ void SendPartials() {
    for (int group = warp_; group < plan_.groups; group += warps_) {
      const GroupParts<T, kParts> parts(group * group_channels_, (group + 1) * group_channels_);
      exchange_.Send(group, MergeRows(shared_.threads, parts, plan_.rows, plan_.columns * kParts));
    }
  }

  // Loads the strip's gamma and beta into shared memory, unless they are already there.
  __device__ void LoadParams() {
    if (strip_.first_channel == params_of_) return;
    params_of_ = strip_.first_channel;
    for (int i = static_cast<int>(threadIdx.x); i < channels_; i += static_cast<int>(blockDim.x)) {
      shared_.gamma[i] = LoadParam(batch_.gamma, params_of_ + i, A(1));
      shared_.beta[i] = LoadParam(batch_.beta, params_of_ + i, A(0));
    }
  }

  // Merges the partials of all blocks and leaves the scale of each group in shared memory.
  __device__ void ReceivePartials() {
    const A elements = static_cast<A>(group_channels_) * static_cast<A>(strip_.spatial);
    for (int group = warp_; group < plan_.groups; group += warps_) {
      const A count = static_cast<A>(group_channels_) *
                      static_cast<A>(PositionsOfBlock(plan_, strip_.spatial, lane_).count);
      const Moments<A> merged = MergeLanes(exchange_.Receive(group, count), elements, kLanes);
      if (lane_ == 0) shared_.scales[group] = FinishRow(merged, batch_.eps, batch_.centered);
    }
  }

  // Computes the factors of the thread's column.
  __device__ void FindScale(ColumnScale<T, kParts>* scale) const {
    if (thread_.row >= plan_.rows) return;
    LoadShared<kAligned>(shared_.gamma + thread_.first_channel, present_, scale->factor);
    LoadShared<kAligned>(shared_.beta + thread_.first_channel, present_, scale->offset);
    RowScale<A> row = shared_.scales[thread_.first_group];
    int group = thread_.first_group;
    int left = thread_.left_in_group;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < present_) scale->Set(i, row);
      if (kParts > 1 && --left == 0 && i + 1 < present_) {
        row = shared_.scales[++group];
        left = group_channels_;
      }
    }
  }

  // Scales and stores the column, and loads a vector of the next strip into each place that this
  // empties. Unaligned accesses are much code, so there is one copy for all activations.
  __device__ void StoreAndFetch(const ColumnScale<T, kParts>& scale, const StripColumn& next) {
    const A leaky_slope = batch_.leaky_slope.template As<A>();
    if constexpr (kAligned) {
      WithActivation(batch_.activation, [&](auto activation) {
        StoreAndFetch(next, [&](const Vector& vector) {
          return scale.template Apply<decltype(activation)::value>(vector, leaky_slope);
        });
      });
    } else {
      StoreAndFetch(next, [&](const Vector& vector) {
        return scale.Apply(vector, batch_.activation, leaky_slope);
      });
    }
    if (slots_ % kChunk != 0) EndCopyGroup();
  }

  template <typename Apply>
  __device__ void StoreAndFetch(const StripColumn& next, Apply apply) {
    const char* from = next.x;
    char* to = column_.y;
    const auto store = [&](const Vector& vector) {
      const Vector result = apply(vector);
      if constexpr (kAligned) {
        StoreVector(to, result);
      } else {
        StoreColumn<T>(to, result, present_, column_.y_width);
      }
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i < column_.count) store(held_[i]);
      if (i < next.count) held_[i] = Load(next, from);
      to += column_.step;
      from += next.step;
    }
#pragma unroll 2
    for (int i = 0; i < slots_; ++i) {
      if (i + kHeld < column_.count) store(slot_[i * plan_.threads]);
      if (i + kHeld < next.count) {
        CopyVector<T, kAligned>(slot_ + i * plan_.threads, from, present_, next.x_width);
      }
      to += column_.step;
      from += next.step;
      if (i % kChunk == kChunk - 1) EndCopyGroup();
    }
  }

  const RowBatch& batch_;
  const StripPlan& plan_;
  const int rank_;
  Exchange& exchange_;
  const int channels_;  // In a strip.
  const StripShared<A> shared_;
  const int lane_;
  const int warp_;
  const int warps_;
  const int group_channels_;
  const StripThread thread_;
  const int present_;
  const int slots_;  // In shared memory.
  const int chunks_;
  Vector* const slot_;           // The thread's first.
  std::int64_t params_of_ = -1;  // First channel of the parameters in shared memory.
  Strip strip_;
  StripColumn column_;
  Vector held_[kHeld > 0 ? kHeld : 1];
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_CHANNELS_LAST_STRIP_WORKER_CUH_
