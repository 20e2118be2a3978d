// SiLU of float16 results by the tanh of the special function unit:
//   v / (1 + exp(-v)) = h + h tanh(h),  h = v / 2,
// one special function and one multiply-add, where the exponential and the reciprocal take two and
// three more instructions.

#ifndef NORMD_KERNELS_CUDA_ROWS_SILU_BY_TANH_CUH_
#define NORMD_KERNELS_CUDA_ROWS_SILU_BY_TANH_CUH_

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace normd::norm::cuda {

// PTX promises a relative error of 2^-11 for tanh, from which 1 + tanh(h) near -1 would get an
// error of many units in the last place. Compute capability 9.0 is better than that
// (docs/experiments.md); code for other devices keeps the exponential. A later device that runs the
// PTX of 9.0 would use a tanh that nobody has measured there; the image has 9.0 as 90-real.
// bfloat16 keeps the exponential too: it needs a scaling of its own, and both formulas together
// spill registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
inline constexpr bool kTanhIsAccurate = true;
#else
inline constexpr bool kTanhIsAccurate = false;
#endif
template <typename T>
inline constexpr bool kHasSiluByTanh = kTanhIsAccurate&& std::is_same_v<T, Half>;

// The least h for tanh: from there on the result is within a third of a float16's unit in the last
// place before it is rounded. A smaller h takes the exponential.
inline constexpr float kLeastByTanh = -3.5f;

__device__ inline float SiluByTanh(float h) {
  float tanh;
  asm("tanh.approx.f32 %0, %1;" : "=f"(tanh) : "f"(h));
  return Fma(h, tanh, h);
}

// Whether every h may take tanh. As unsigned numbers, negative floats are above all others, and a
// smaller one is above a larger one. NaN may take tanh.
template <int N>
__device__ inline bool AllByTanh(const float (&halves)[N]) {
  unsigned most = __float_as_uint(halves[0]);
#pragma unroll
  for (int i = 1; i + 1 < N; i += 2) {
    most = __vimax3_u32(most, __float_as_uint(halves[i]), __float_as_uint(halves[i + 1]));
  }
  if constexpr (N % 2 == 0) most = max(most, __float_as_uint(halves[N - 1]));
  return most <= __float_as_uint(kLeastByTanh);
}

// Turns every h into its result. The formula for each h depends on that h alone.
template <typename T, int N>
__device__ inline void SiluOfHalves(float (&halves)[N]) {
  if (AllByTanh(halves)) {
#pragma unroll
    for (float& h : halves) h = SiluByTanh(h);
    return;
  }
#pragma unroll
  for (float& h : halves) {
    const float far = Activate<T, Activation::kSilu>(2 * h, 0.0f);
    h = h < kLeastByTanh ? far : SiluByTanh(h);
  }
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_SILU_BY_TANH_CUH_
