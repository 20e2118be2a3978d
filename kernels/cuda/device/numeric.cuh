// Elements and vectors: conversion between the types in memory and in computation.
//
// A vector is 16 bytes of consecutive elements, the widest access of one lane. Arithmetic is in
// Accumulator<T>: float, for double double. Conversions round to nearest even; a half that
// overflows becomes an infinity, a NaN stays a NaN.

#ifndef NORMD_KERNELS_CUDA_DEVICE_NUMERIC_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_NUMERIC_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/norm.h"

namespace normd::norm::cuda {

using Half = __half;
using BFloat = __nv_bfloat16;
using Vector = uint4;

constexpr int kVectorBytes = 16;
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The minimum of blocks per multiprocessor that a kernel reserves registers for: the wanted number,
// if the target device holds that many threads (1024 on 7.5, 1536 or more on others).
constexpr int MinBlocks(int wanted, int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  constexpr int kThreads = 1024;
#else
  constexpr int kThreads = 1536;
#endif
  return wanted * threads <= kThreads ? wanted : kThreads / threads;
}

// A value that is the same in all lanes of the warp, which call this together. On devices that can,
// it lets the compiler keep the value, and what it computes from it, in registers of the whole
// warp.
__device__ inline std::uint32_t OfWarp(std::uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return value;
#else
  return __reduce_max_sync(kAllLanes, value);
#endif
}

template <typename T>
inline constexpr int kPerVector = kVectorBytes / static_cast<int>(sizeof(T));

template <typename T>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::Type;

__device__ inline float Widen(float value) { return value; }
__device__ inline double Widen(double value) { return value; }
__device__ inline float Widen(Half value) { return __half2float(value); }
__device__ inline float Widen(BFloat value) { return __bfloat162float(value); }

// a * b + c, rounded once. The compiler contracts nothing by itself (README.md, "Bits").
__device__ inline float Fma(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double Fma(double a, double b, double c) { return fma(a, b, c); }

// A constant of the spec in both accumulation types, rounded on the host. Part of kernel
// parameters.
struct Constant {
  Constant() = default;
  explicit Constant(double value) : wide(value), narrow(static_cast<float>(value)) {}

  template <typename A>
  __device__ A As() const {
    if constexpr (std::is_same_v<A, double>) {
      return wide;
    } else {
      return narrow;
    }
  }

  double wide;
  float narrow;
};

// A constant that numbers are added to. Adding 0 would turn -0 into 0, adding -0 changes nothing.
inline Constant Addend(double value) { return Constant(value == 0 ? -0.0 : value); }

template <typename T>
__device__ inline T Narrow(Accumulator<T> value) {
  if constexpr (sizeof(T) >= 4) {
    return value;
  } else if constexpr (std::is_same_v<T, Half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

template <typename To, typename From>
__device__ inline To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// The two 16-bit elements of a word.
template <typename T>
__device__ inline float2 UnpackPair(std::uint32_t word) {
  if constexpr (std::is_same_v<T, Half>) {
    return __half22float2(BitCast<__half2>(word));
  } else {
    // A bfloat16 is the upper half of a float; the toolkit's conversion takes three steps.
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
}

template <typename T>
__device__ inline void Unpack(const Vector& vector, Accumulator<T> (&values)[kPerVector<T>]) {
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(words[i]);
  } else if constexpr (std::is_same_v<T, double>) {
#pragma unroll
    for (int i = 0; i < 2; ++i) values[i] = __hiloint2double(words[2 * i + 1], words[2 * i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = UnpackPair<T>(words[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
}

template <typename T>
__device__ inline Vector Pack(const Accumulator<T> (&values)[kPerVector<T>]) {
  std::uint32_t words[4];
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(values[i]);
  } else if constexpr (std::is_same_v<T, double>) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[2 * i] = static_cast<std::uint32_t>(__double2loint(values[i]));
      words[2 * i + 1] = static_cast<std::uint32_t>(__double2hiint(values[i]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = make_float2(values[2 * i], values[2 * i + 1]);
      if constexpr (std::is_same_v<T, Half>) {
        words[i] = BitCast<std::uint32_t>(__float22half2_rn(pair));
      } else {
        words[i] = BitCast<std::uint32_t>(__float22bfloat162_rn(pair));
      }
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Hides from the compiler that a vector is unchanged. Otherwise values that are unpacked twice stay
// in registers in between, in twice the space of the packed vector.
__device__ inline void Repack(Vector& vector) {
  asm volatile("" : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w));
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_NUMERIC_CUH_
