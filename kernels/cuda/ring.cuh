// Rows in a ring in shared memory, one warp's part of it: what the persistent strategies are made
// of.
//
// A warp computes the same run of each row it meets. A granule of the ring belongs to one lane,
// which asks for it (cp.async), sums it, scales it, stores the result and asks for another row in
// its place; none of that needs a barrier. With three rows in the ring some loads are always under
// way. The registers hold no row, so they are free for gamma and beta.

#ifndef NORMD_KERNELS_CUDA_RING_CUH_
#define NORMD_KERNELS_CUDA_RING_CUH_

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/rows.cuh"

namespace normd::norm::cuda {

// Copies the first `bytes` of 16 bytes into shared memory and zeroes the rest, asynchronously.
__device__ inline void CopyAsync(Granule* to, const char* from, int bytes) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
#endif
}
// The same for all 16.
__device__ inline void CopyAsync(Granule* to, const char* from) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#endif
}
__device__ inline void CommitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most N of the thread's groups of copies are under way.
template <int N>
__device__ inline void WaitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// One warp's run of one row.
template <typename T, bool kAligned>
struct RingRun {
  const char* origin;  // 16-byte aligned.
  int shift;           // Where the run begins in the granule at the origin.
  int bytes;           // ClampToRun's; 0 for no row.

  __device__ RingRun(const Row& row, bool exists, std::int64_t begin, int run_bytes) {
    shift = kAligned ? 0 : Misalignment(row.x + begin);
    origin = row.x + begin - shift;
    bytes = exists ? ClampToRun(row.bytes - begin, run_bytes) : 0;
  }

  // Asks for the granule `index` of the origin.
  __device__ void Ask(Granule* ring, int index) const {
    const int offset = index * kGranuleBytes;
    if constexpr (kAligned) {
      if (offset < bytes) CopyAsync(ring + index, origin + offset);
    } else {
      const int left = bytes == 0 ? 0 : bytes + shift - offset;
      if (left > 0) CopyAsync(ring + index, origin + offset, min(left, kGranuleBytes));
    }
  }
  // The granule `index` of the run.
  __device__ Granule Read(const Granule* ring, int index) const {
    if (kAligned || shift == 0) return ring[index];
    return ShiftDown<T>(ring[index], ring[index + 1], shift);
  }
};

// Which part of each row a warp computes, and where its ring is.
struct RingPlace {
  std::int64_t begin;  // Of the warp's run in every row, in bytes.
  Granule* ring;       // kRingStages runs, each with one granule more than it computes.
  int granules;        // Of a lane, at most kRingGranules.
};

// Rows go by their index in the batch, which has none at or behind batch.rows.
// kParamGranules: 0, or how many granules of gamma and of beta a lane keeps in registers; then
// every row has the same parameters, one per element, and there is no activation.
template <typename T, bool kAligned, int kParamGranules>
class RingWarp {
 public:
  using A = Accumulator<T>;

  __device__ RingWarp(const RowBatch& batch, const RingPlace& place)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        run_bytes_(place.granules * kLanes * kGranuleBytes) {
    if constexpr (kParamGranules > 0) {
#pragma unroll
      for (int i = 0; i < kParamGranules; ++i) {
        LoadParam(batch.gamma, i, A(1), gamma_[i]);
        LoadParam(batch.beta, i, A(0), beta_[i]);
      }
    }
  }

  __device__ int lane() const { return lane_; }

  // Asks for a row where there is none to scale yet.
  __device__ void AskFirst(std::uint32_t index, int stage) const {
    const bool exists = index < batch_.rows;
    const Run run(FindRow(batch_, exists ? index : 0), exists, place_.begin, run_bytes_);
#pragma unroll 1
    for (int first = 0; first < place_.granules; first += kBatch) {
      AskBatch(run, first, Stage(stage));
    }
    AskBeyond(run, Stage(stage));
    CommitCopies();
  }

  // Scales and stores a row, `scale` known, and asks for another in its place. Rows behind the last
  // are passed over.
  __device__ void ScaleAndAsk(std::uint32_t index, const RowScale<A>& scale, std::uint32_t ask,
                              int stage) const {
    ScaleRow(index, scale, ask, Stage(stage));
    CommitCopies();
  }

  // Waits for a row that was asked for `ahead` calls of ScaleAndAsk or AskFirst ago, and sums the
  // warp's run of it; every lane gets the result.
  template <int kAhead>
  __device__ Moments<A> AwaitAndSum(std::uint32_t index, int stage) const {
    WaitCopies<kAhead>();
    if (!kAligned) __syncwarp();  // Lanes read what their neighbours asked for.
    if (index >= batch_.rows) return Moments<A>();
    const Run run(FindRow(batch_, index), true, place_.begin, run_bytes_);
    return Sum(run, min(run.bytes, run_bytes_), Stage(stage));
  }

 private:
  using Run = RingRun<T, kAligned>;
  static constexpr int kBatch = 4;  // Granules of a lane in registers at a time.

  __device__ Granule* Stage(int stage) const {
    return place_.ring + stage * RingStageGranules(place_.granules);
  }

  __device__ void ScaleRow(std::uint32_t index, const RowScale<A>& scale, std::uint32_t ask_index,
                           Granule* ring) const {
    const bool asks = ask_index < batch_.rows;
    const Run ask(FindRow(batch_, asks ? ask_index : 0), asks, place_.begin, run_bytes_);
    const bool scales = index < batch_.rows;
    const Row row = FindRow(batch_, scales ? index : 0);
    const Run run(row, scales, place_.begin, run_bytes_);
    const int bytes = min(run.bytes, run_bytes_);
    char* const out = row.y + place_.begin;
    if constexpr (kParamGranules > 0) {
      const RunScale<T> run_scale(scale);
#pragma unroll
      for (int first = 0; first < kParamGranules; first += kBatch) {
        ScaleBatch(run, bytes, out, first, ring, [&](const Granule& granule, int i) {
          A values[kPerGranule<T>];
          Unpack<T>(granule, values);
#pragma unroll
          for (int j = 0; j < kPerGranule<T>; ++j) {
            values[j] = run_scale.ByElement(values[j], gamma_[i][j], beta_[i][j]);
          }
          return Pack<T>(values);
        });
        AskBatch(ask, first, ring);
      }
    } else {
      const std::int64_t element = place_.begin / static_cast<int>(sizeof(T));
      RunEpilogue<T> epilogue(batch_, row, scale, element,
                              element + bytes / static_cast<int>(sizeof(T)));
      {
#pragma unroll 1
        for (int first = 0; first < place_.granules; first += kBatch) {
          ScaleBatch(run, bytes, out, first, ring, [&](const Granule& granule, int i) {
            const int offset = (i * kLanes + lane_) * kGranuleBytes;
            return epilogue.Apply(granule, element + offset / static_cast<int>(sizeof(T)),
                                  ElementsPresent<T>(bytes, offset));
          });
          AskBatch(ask, first, ring);
        }
      }
    }
    AskBeyond(ask, ring);
  }

  __device__ Moments<A> Sum(const Run& run, int bytes, const Granule* ring) const {
    const int whole = bytes / kGranuleBytes;
    LaneSums<T> sums(batch_.centered ? FirstElement<T>(run.Read(ring, lane_)) : A(0));
#pragma unroll
    for (int i = 0; i < kRingGranules; ++i) {
      const int granule = i * kLanes + lane_;
      if (granule < whole) sums.Add(run.Read(ring, granule));
    }
    int count = (whole - lane_ + kLanes - 1) / kLanes * kPerGranule<T>;
    if (!kAligned && whole % kLanes == lane_) {
      const int rest = bytes % kGranuleBytes / static_cast<int>(sizeof(T));
      if (rest > 0) sums.Add(run.Read(ring, whole), rest);
      count += rest;
    }
    return MergeLanes(sums.Finish(count, batch_.centered),
                      static_cast<A>(bytes / static_cast<int>(sizeof(T))), kLanes);
  }

  // Stores result(granule, index) for granules [first, first + kBatch) of each lane.
  template <typename Result>
  __device__ void ScaleBatch(const Run& run, int bytes, char* out, int first, const Granule* ring,
                             Result result) const {
    const int begin = first * kLanes * kGranuleBytes;
    if (begin >= bytes) return;
    Granule granules[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int granule = (first + i) * kLanes + lane_;
      granules[i] = make_uint4(0, 0, 0, 0);
      if (granule * kGranuleBytes < bytes) granules[i] = run.Read(ring, granule);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) granules[i] = result(granules[i], first + i);
    StoreRun<T, kAligned>(out + begin, bytes - begin, lane_, kLanes, granules);
  }

  __device__ void AskBatch(const Run& run, int first, Granule* ring) const {
    if (!kAligned) __syncwarp();  // Neighbours have read what this lane asks for.
#pragma unroll
    for (int i = first; i < first + kBatch; ++i) {
      if (i < place_.granules) run.Ask(ring, i * kLanes + lane_);
    }
  }

  // A run that begins inside a granule ends inside one more.
  __device__ void AskBeyond(const Run& run, Granule* ring) const {
    if (!kAligned && lane_ == 0 && run.shift != 0) run.Ask(ring, place_.granules * kLanes);
  }

  // gamma or beta of the lane's granule `index`.
  __device__ void LoadParam(const ParamVector& param, int index, A absent,
                            A (&values)[kPerGranule<T>]) const {
    const std::int64_t offset = place_.begin + (index * kLanes + lane_) * kGranuleBytes;
    const std::int64_t left = index < place_.granules ? batch_.segments[0].row_bytes - offset : 0;
    const int bytes = static_cast<int>(left < 0 ? 0 : left < kGranuleBytes ? left : kGranuleBytes);
    LoadParams(param, offset / static_cast<int>(sizeof(T)), bytes / static_cast<int>(sizeof(T)),
               absent, values);
  }

  const RowBatch& batch_;
  const RingPlace place_;
  const int lane_;
  const int run_bytes_;
  A gamma_[kParamGranules > 0 ? kParamGranules : 1][kPerGranule<T>];
  A beta_[kParamGranules > 0 ? kParamGranules : 1][kPerGranule<T>];
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_RING_CUH_
