// Elements between the stages: combinations, activations, and the written form.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_VALUES_CUH_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_VALUES_CUH_

#include <cuda_fp8.h>

#include "kernels/cuda/device/statistics.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/stages/stage_batch.cuh"

namespace normd::norm::cuda {

// v / (1 + exp(-u)): Gate of the epilogue, for float to the accuracy of float.
template <Combine kCombine, typename A>
__device__ inline A CombineOne(A value, A other) {
  if constexpr (kCombine == Combine::kAdd) {
    return value + other;
  } else if constexpr (kCombine == Combine::kMultiply) {
    return value * other;
  } else if constexpr (kCombine == Combine::kMultiplySilu) {
    return value * Gate(other, other);
  } else {
    return value * Gate(A(1), other);
  }
}

template <Combine kCombine, typename A, int N>
__device__ inline void CombineAll(A (&values)[N], const A (&others)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = CombineOne<kCombine>(values[i], others[i]);
}

// The switch is uniform over a launch.
template <typename A, int N>
__device__ inline void CombineWith(Combine combine, A (&values)[N], const A (&others)[N]) {
  switch (combine) {
    case Combine::kNone: break;
    case Combine::kAdd: CombineAll<Combine::kAdd>(values, others); break;
    case Combine::kMultiply: CombineAll<Combine::kMultiply>(values, others); break;
    case Combine::kMultiplySilu: CombineAll<Combine::kMultiplySilu>(values, others); break;
    case Combine::kMultiplySigmoid: CombineAll<Combine::kMultiplySigmoid>(values, others); break;
  }
}

// The scale of a row or block with the given largest |y|, and the factor of y.
template <typename A>
struct QuantizationFactor {
  float scale;
  A factor;

  __device__ QuantizationFactor(Quantization quantization, A largest) {
    const A wanted = largest / static_cast<A>(quantization == Quantization::kInt8 ? 127 : 448);
    scale = static_cast<float>(wanted);
    if (wanted < A(0x1p-126)) scale = 0x1p-126f;  // A NaN stays a NaN.
    factor = A(1) / static_cast<A>(scale);
  }
};

// The largest magnitude of a block of a quantized row, whose vectors are those of adjacent lanes,
// of a row that lies in `width` lanes of a warp or in whole warps.
template <typename T>
__device__ inline std::uint32_t LargestOfBlock(std::uint32_t own, int width) {
  constexpr int kVectors = static_cast<int>(kQuantizationBlock) / kPerVector<T>;
  // A constant width takes a third of the instructions.
  return width >= kVectors ? LargestOfLanes(own, kVectors) : LargestOfLanes(own, width);
}

__device__ inline std::uint32_t ToInt8(float value) {
  return static_cast<std::uint32_t>(min(max(__float2int_rn(value), -128), 127)) & 0xff;
}
__device__ inline std::uint32_t ToFloat8Pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// N values, an even number of at most eight, as N bytes from the lowest on. Products of float64 are
// rounded to float32 before.
template <typename A, int N>
__device__ inline uint2 Quantize(Quantization quantization, const A (&values)[N], A factor) {
  std::uint32_t words[2] = {0, 0};
  if (quantization == Quantization::kInt8) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      words[i / 4] |= ToInt8(static_cast<float>(values[i] * factor)) << (i % 4 * 8);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      words[i / 4] |= ToFloat8Pair(static_cast<float>(values[i] * factor),
                                   static_cast<float>(values[i + 1] * factor))
                      << (i % 4 * 8);
    }
  }
  return make_uint2(words[0], words[1]);
}

// Stores N bytes at an address that is a multiple of N.
template <int N>
__device__ inline void StoreBytes(char* address, uint2 bytes) {
  if constexpr (N == 8) {
    *reinterpret_cast<uint2*>(address) = bytes;
  } else if constexpr (N == 4) {
    *reinterpret_cast<std::uint32_t*>(address) = bytes.x;
  } else {
    *reinterpret_cast<std::uint16_t*>(address) = static_cast<std::uint16_t>(bytes.x);
  }
}

// Values rounded to T and back.
template <typename T>
__device__ inline void RoundTo(Accumulator<T> (&values)[kPerVector<T>]) {
  if constexpr (sizeof(T) == 2) Unpack<T>(Pack<T>(values), values);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_VALUES_CUH_
