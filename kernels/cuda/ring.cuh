// Rows in a ring in shared memory, one warp's part of it: what the persistent strategies are made
// of.
//
// A warp computes the same run of each row it meets. A granule of the ring belongs to one lane,
// which asks for it (cp.async), sums it, scales it, stores the result and asks for the next row in
// its place; none of that needs a barrier. A ring of three rows or more has a row's loads in flight
// at any time. The registers hold no row, so they are free for gamma and beta.

#ifndef NORMD_KERNELS_CUDA_RING_CUH_
#define NORMD_KERNELS_CUDA_RING_CUH_

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/rows.cuh"

namespace norm::cuda {

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
template <int N>
__device__ inline void WaitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
// Waits until at most `pending` of the thread's groups of copies are under way.
__device__ inline void WaitCopies(int pending) {
  switch (pending) {
    case 1: WaitCopies<1>(); break;
    case 2: WaitCopies<2>(); break;
    case 3: WaitCopies<3>(); break;
    case 4: WaitCopies<4>(); break;
    case 5: WaitCopies<5>(); break;
    case 6: WaitCopies<6>(); break;
    case 7: WaitCopies<7>(); break;
    default: WaitCopies<0>(); break;
  }
}

// One warp's run of one row.
template <typename T, bool kAligned>
struct RingRun {
  const char* origin;  // 16-byte aligned.
  int shift;           // Where the run begins in the granule at the origin.
  int bytes;           // ClampToRun's.

  __device__ RingRun(const Row& row, std::int64_t begin, int run_bytes) {
    shift = kAligned ? 0 : Misalignment(row.x + begin);
    origin = row.x + begin - shift;
    bytes = ClampToRun(row.elements * static_cast<std::int64_t>(sizeof(T)) - begin, run_bytes);
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
    return ShiftDown(ring[index], ring[index + 1], shift);
  }
};

// Which part of each row a warp computes, and where its ring is.
struct RingPlace {
  std::int64_t begin;  // Of the warp's run in every row, in bytes.
  Granule* ring;       // `stages` runs, each with one granule more than it computes.
  int granules;        // Of a lane.
};

__host__ __device__ constexpr int RingStageGranules(int granules) { return granules * kLanes + 1; }

// gamma and beta of a lane's granules, in registers for the life of the block or not at all.
template <typename T, bool kRegisterParams>
struct RingParams {
  using A = Accumulator<T>;
  static constexpr int kGranules =
      kRegisterParams ? 128 / (kPerGranule<T> * static_cast<int>(sizeof(A))) : 1;
  A gamma[kGranules][kPerGranule<T>];
  A beta[kGranules][kPerGranule<T>];
};

// kRegisterParams: every row has the same parameters, one per element, for at most
// RingParams::kGranules granules of a lane, and there is no activation.
template <typename T, bool kAligned, bool kRegisterParams>
class RingWarp {
 public:
  using A = Accumulator<T>;
  using Run = RingRun<T, kAligned>;
  using Params = RingParams<T, kRegisterParams>;

  __device__ RingWarp(const RowBatch& batch, const RingPlace& place)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        run_bytes_(place.granules * kLanes * kGranuleBytes) {
    if constexpr (kRegisterParams) LoadRunParams();
  }

  __device__ int lane() const { return lane_; }

  // Asks for the run of a row. The caller commits.
  __device__ void Ask(const Row& row, int stage) const {
    const Run run(row, place_.begin, run_bytes_);
#pragma unroll 4
    for (int i = 0; i < place_.granules; ++i) run.Ask(Stage(stage), i * kLanes + lane_);
    AskBeyond(run, Stage(stage));
  }

  // Sums a run that has arrived; every lane gets the result.
  __device__ Moments<A> Sum(const Row& row, int stage) const {
    if (!kAligned) __syncwarp();  // Lanes read what their neighbours asked for.
    const Run run(row, place_.begin, run_bytes_);
    const Granule* const ring = Stage(stage);
    const int bytes = min(run.bytes, run_bytes_);
    const int whole = bytes / kGranuleBytes;
    const int steps = (whole - lane_ + kLanes - 1) / kLanes;  // This lane's whole granules.
    LaneSums<T> sums(run.Read(ring, lane_), batch_.centered);
#pragma unroll 4
    for (int i = 0; i < steps; ++i) sums.Add(run.Read(ring, i * kLanes + lane_));
    int count = max(steps, 0) * kPerGranule<T>;
    if (!kAligned && whole % kLanes == lane_) {
      const int rest = bytes % kGranuleBytes / static_cast<int>(sizeof(T));
      if (rest > 0) sums.AddPart(run.Read(ring, whole), rest);
      count += rest;
    }
    return MergeLanes(sums.Finish(count, batch_.centered),
                      static_cast<A>(bytes / static_cast<int>(sizeof(T))), kLanes);
  }

  // Scales and stores the run of a row and, if `refill`, asks for the run of `next` in its place.
  __device__ void Scale(const Row& row, const RowScale<A>& scale, bool refill, const Row& next,
                        int stage) const {
    const Run run(row, place_.begin, run_bytes_);
    Run next_run(next, place_.begin, run_bytes_);
    if (!refill) next_run.bytes = 0;
    const int bytes = min(run.bytes, run_bytes_);
    Granule* const ring = Stage(stage);
    char* const out = row.y + place_.begin;
    if constexpr (kRegisterParams) {
      const RunScale<T> run_scale(scale);
#pragma unroll
      for (int first = 0; first < Params::kGranules; first += kBatch) {
        if (first < place_.granules) {
          Step<kBatch>(run, bytes, out, first, ring, next_run, [&](const Granule& granule, int i) {
            return run_scale.ByElement(granule, params_.gamma[i], params_.beta[i]);
          });
        }
      }
    } else {
      const std::int64_t element = place_.begin / static_cast<int>(sizeof(T));
      RunEpilogue<T> epilogue(batch_, row, scale, element,
                              element + bytes / static_cast<int>(sizeof(T)));
      if (epilogue.plain()) {
#pragma unroll 1
        for (int first = 0; first < place_.granules; first += kBatch) {
          Step<kBatch>(run, bytes, out, first, ring, next_run,
                       [&](const Granule& granule, int) { return epilogue.ApplyPlain(granule); });
        }
      } else {
        constexpr int kGeneralBatch = kAligned ? 1 : kBatch;
#pragma unroll 1
        for (int first = 0; first < place_.granules; first += kGeneralBatch) {
          Step<kGeneralBatch>(
              run, bytes, out, first, ring, next_run, [&](const Granule& granule, int i) {
                const int offset = (i * kLanes + lane_) * kGranuleBytes;
                return epilogue.Apply(granule, element + offset / static_cast<int>(sizeof(T)),
                                      ElementsPresent<T>(bytes, offset));
              });
        }
      }
    }
    AskBeyond(next_run, ring);
  }

 private:
  static constexpr int kBatch = 4;  // Granules of a lane in registers at a time.

  __device__ Granule* Stage(int stage) const {
    return place_.ring + stage * RingStageGranules(place_.granules);
  }

  __device__ void LoadRunParams() {
    const std::int64_t elements = batch_.segments[0].elements;
#pragma unroll
    for (int i = 0; i < Params::kGranules; ++i) {
      const std::int64_t element =
          (place_.begin + (i * kLanes + lane_) * kGranuleBytes) / static_cast<int>(sizeof(T));
      const std::int64_t left = i < place_.granules ? elements - element : 0;
      const int present = static_cast<int>(left <= 0               ? 0
                                           : left < kPerGranule<T> ? left
                                                                   : kPerGranule<T>);
      LoadParams(batch_.gamma, element, present, A(1), params_.gamma[i]);
      LoadParams(batch_.beta, element, present, A(0), params_.beta[i]);
    }
  }

  // Granules [first, first + N) of each lane: result(granule, index) is stored.
  template <int N, typename Result>
  __device__ void Step(const Run& run, int bytes, char* out, int first, Granule* ring,
                       const Run& next, Result result) const {
    Granule granules[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      granules[i] = make_uint4(0, 0, 0, 0);
      if (first + i < place_.granules) granules[i] = run.Read(ring, (first + i) * kLanes + lane_);
    }
    if (!kAligned) __syncwarp();  // Neighbours have read what this lane asks for next.
#pragma unroll
    for (int i = 0; i < N; ++i) granules[i] = result(granules[i], first + i);
    const int begin = first * kLanes * kGranuleBytes;
    StoreRun<T, kAligned>(out + begin, max(bytes - begin, 0), lane_, kLanes, granules);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < place_.granules) next.Ask(ring, (first + i) * kLanes + lane_);
    }
  }

  // A run that begins inside a granule ends inside one more.
  __device__ void AskBeyond(const Run& run, Granule* ring) const {
    if (!kAligned && lane_ == 0 && run.shift != 0) run.Ask(ring, place_.granules * kLanes);
  }

  const RowBatch& batch_;
  const RingPlace place_;
  const int lane_;
  const int run_bytes_;
  Params params_;
};

}  // namespace norm::cuda

#endif  // NORMD_KERNELS_CUDA_RING_CUH_
