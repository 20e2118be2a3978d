// Runs: how a warp moves consecutive bytes of a row at any alignment.
//
// A run is what `width` lanes (a power of two, at most 32) hold of a row: G steps, in step i lane l
// holds the 16 bytes at (i * width + l) * 16 from the run's begin. That assignment counts from the
// row, so it is the same at every address, and with it the order of every sum. Where the address is
// no multiple of 16, the lanes load the aligned granules that cover the run and pass bytes to their
// neighbours: device memory sees 16-byte accesses all the same. A load may touch up to 15 bytes
// before the run, in the granule that the run begins in, and none behind its end.
//
// kAligned: the address and the length of every row are multiples of 16, so none of that is needed.

#ifndef NORMD_KERNELS_CUDA_MEMORY_CUH_
#define NORMD_KERNELS_CUDA_MEMORY_CUH_

#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/numeric.cuh"

namespace normd::norm::cuda {

// Each byte is read once and written once, so neither should push anything out of the caches.
__device__ inline Granule LoadGranule(const char* address) {
  return __ldcs(reinterpret_cast<const uint4*>(address));
}
__device__ inline void StoreGranule(char* address, const Granule& granule) {
  __stcs(reinterpret_cast<uint4*>(address), granule);
}

__device__ inline int Misalignment(const void* address) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(address) % kGranuleBytes);
}

// Bytes [shift, shift + 16) of low followed by high; shift is 0 to 15.
__device__ inline Granule ShiftDown(const Granule& low, const Granule& high, int shift) {
  std::uint32_t w[7] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z};
  std::uint32_t last = high.w;
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 2];
    w[5] = last;
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
  const int bits = (shift & 3) * 8;
  return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                    __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

// Bytes [16 - shift, 32 - shift) of low followed by high; shift is 0 to 15.
__device__ inline Granule ShiftUp(const Granule& low, const Granule& high, int shift) {
  return shift == 0 ? high : ShiftDown(low, high, kGranuleBytes - shift);
}

// By value: a choice between two elements of an array by reference would put the array into memory.
__device__ inline Granule Select(bool first, Granule a, Granule b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

// The value that lane `source` of the caller's group of `width` lanes passes.
__device__ inline Granule Exchange(const Granule& granule, int source, int width) {
  return make_uint4(__shfl_sync(kAllLanes, granule.x, source, width),
                    __shfl_sync(kAllLanes, granule.y, source, width),
                    __shfl_sync(kAllLanes, granule.z, source, width),
                    __shfl_sync(kAllLanes, granule.w, source, width));
}

// An unsigned integer of T's size.
template <typename T>
using Bits =
    std::conditional_t<sizeof(T) == 2, std::uint16_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, unsigned long long>>;

// The elements of a granule in bytes [0, end) of it, one by one; zero elsewhere.
template <typename T>
__device__ inline Granule LoadHead(const char* address, int end) {
  unsigned long long half[2] = {0, 0};
#pragma unroll 1
  for (int at = 0; at < end; at += static_cast<int>(sizeof(T))) {
    const auto bits =
        static_cast<unsigned long long>(*reinterpret_cast<const Bits<T>*>(address + at))
        << ((at % 8) * 8);
    half[0] |= at < 8 ? bits : 0;
    half[1] |= at < 8 ? 0 : bits;
  }
  return make_uint4(static_cast<unsigned>(half[0]), static_cast<unsigned>(half[0] >> 32),
                    static_cast<unsigned>(half[1]), static_cast<unsigned>(half[1] >> 32));
}

// Stores the elements of a granule in bytes [begin, end) of it, one by one.
template <typename T>
__device__ inline void StoreSpan(char* address, const Granule& granule, int begin, int end) {
  const unsigned long long low = granule.x | static_cast<unsigned long long>(granule.y) << 32;
  const unsigned long long high = granule.z | static_cast<unsigned long long>(granule.w) << 32;
#pragma unroll 1
  for (int at = begin; at < end; at += static_cast<int>(sizeof(T))) {
    const unsigned long long half = at < 8 ? low : high;
    *reinterpret_cast<Bits<T>*>(address + at) = static_cast<Bits<T>>(half >> ((at % 8) * 8));
  }
}

// How many of a run's bytes a row holds that has `left` bytes from the run's begin on: at most 16
// more than the run has, which is all that LoadRun wants to know.
__device__ inline int ClampToRun(std::int64_t left, int run_bytes) {
  const std::int64_t most = run_bytes + kGranuleBytes;
  return static_cast<int>(left < 0 ? 0 : left < most ? left : most);
}

// How many elements of the run's granule at `offset` exist, given ClampToRun's bytes.
template <typename T>
__device__ inline int ElementsPresent(int bytes, int offset) {
  const int left = bytes - offset;
  return (left < 0 ? 0 : left < kGranuleBytes ? left : kGranuleBytes) / static_cast<int>(sizeof(T));
}

// Loads a run of which `bytes` exist (ClampToRun); the rest is zero. All 32 lanes call it together.
template <typename T, bool kAligned, int G>
__device__ inline void LoadRun(const char* run, int bytes, int lane, int width,
                               Granule (&granules)[G]) {
  const int shift = kAligned ? 0 : Misalignment(run);
  const int end = bytes == 0 ? 0 : bytes + shift;
  const char* const origin = run - shift;
  const int step = width * kGranuleBytes;
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const int offset = i * step + lane * kGranuleBytes;
    granules[i] = make_uint4(0, 0, 0, 0);
    if (offset + kGranuleBytes <= end) granules[i] = LoadGranule(origin + offset);
  }
  if constexpr (kAligned) return;

  const int rest = end % kGranuleBytes;
  const int tail = end / kGranuleBytes;  // The granule that the row ends in.
  if (rest != 0 && tail < G * width && (tail & (width - 1)) == lane) {
    const Granule last = LoadHead<T>(origin + tail * kGranuleBytes, rest);
#pragma unroll
    for (int i = 0; i < G; ++i) granules[i] = Select(i == tail / width, last, granules[i]);
  }
  if (!__any_sync(kAllLanes, shift != 0)) return;

  Granule beyond = make_uint4(0, 0, 0, 0);
  if (lane == 0 && shift != 0) {
    if (end >= G * step + kGranuleBytes) {
      beyond = LoadGranule(origin + G * step);
    } else if (end > G * step) {
      beyond = LoadHead<T>(origin + G * step, end - G * step);
    }
  }
#pragma unroll
  for (int i = 0; i < G; ++i) {
    Granule following = beyond;
    if (i + 1 < G) following = granules[i + 1 < G ? i + 1 : i];
    const Granule next =
        Exchange(Select(lane == 0, following, granules[i]), (lane + 1) & (width - 1), width);
    granules[i] = ShiftDown(granules[i], next, shift);
  }
}

// Stores what exists of a run. Bytes around it are not written.
template <typename T, bool kAligned, int G>
__device__ inline void StoreRun(char* run, int bytes, int lane, int width,
                                const Granule (&granules)[G]) {
  const int shift = kAligned ? 0 : Misalignment(run);
  const int step = width * kGranuleBytes;
  if (kAligned || !__any_sync(kAllLanes, shift != 0)) {
#pragma unroll
    for (int i = 0; i < G; ++i) {
      const int offset = i * step + lane * kGranuleBytes;
      if (offset + kGranuleBytes <= bytes) {
        StoreGranule(run + offset, granules[i]);
      } else if (!kAligned && offset < bytes) {
        StoreSpan<T>(run + offset, granules[i], 0, bytes - offset);
      }
    }
    return;
  }

  char* const origin = run - shift;
  const int end = bytes == 0 ? 0 : min(bytes, G * step) + shift;
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const Granule before = granules[i > 0 ? i - 1 : 0];
    const Granule previous = Exchange(Select(lane == width - 1, before, granules[i]),
                                      (lane + width - 1) & (width - 1), width);
    const Granule aligned = ShiftUp(previous, granules[i], shift);
    const int offset = i * step + lane * kGranuleBytes;
    const int begin = offset == 0 ? shift : 0;  // What precedes is not ours.
    if (offset + kGranuleBytes <= end && begin == 0) {
      StoreGranule(origin + offset, aligned);
    } else if (offset + begin < end) {
      StoreSpan<T>(origin + offset, aligned, begin, min(end - offset, kGranuleBytes));
    }
  }
  // The last granule's upper bytes reach past the last aligned one.
  if (lane == width - 1 && end > G * step) {
    StoreSpan<T>(origin + G * step, ShiftUp(granules[G - 1], granules[G - 1], shift), 0,
                 end - G * step);
  }
}

// Sums what a lane holds of a run.
template <typename T, bool kAligned, int G>
__device__ inline Moments<Accumulator<T>> SumRun(const Granule (&granules)[G], int bytes, int lane,
                                                 int width, bool centered) {
  LaneSums<T> sums(granules[0], centered);
  int count = 0;
#pragma unroll
  for (int i = 0; i < G; ++i) {
    const int present = ElementsPresent<T>(bytes, (i * width + lane) * kGranuleBytes);
    if (present == kPerGranule<T>) {
      sums.Add(granules[i]);
    } else if (!kAligned && present > 0) {
      sums.AddPart(granules[i], present);
    }
    count += present;
  }
  return sums.Finish(count, centered);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_MEMORY_CUH_
