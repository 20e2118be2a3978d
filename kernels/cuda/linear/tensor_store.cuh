// The end of a warpgroup's work: removes the operands' powers of two from its sums, adds the bias,
// stores. Internal to tensor_product.cu.
//
// A row of x was multiplied with 2^a and a row of the weights with 2^b. 2^-(a + b) may be no float,
// so it is applied as two factors of about its square root: one rounding at most. The samples'
// factors wait in shared memory, those of a thread's two features in registers; all are read before
// the products begin.

#ifndef NORMD_KERNELS_CUDA_LINEAR_TENSOR_STORE_CUH_
#define NORMD_KERNELS_CUDA_LINEAR_TENSOR_STORE_CUH_

#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/linear/tensor_tile.cuh"

namespace normd::norm::cuda {

// 2^-exponent as two factors, for |exponent| <= 126.
__device__ inline float2 Unscaling(int exponent) {
  const auto power = [](int e) { return __int_as_float((e + 127) << 23); };
  return make_float2(power(-(exponent / 2)), power(exponent / 2 - exponent));
}

// A thread's two features: the second is i * 8 further in the tile's columns.
struct FeaturePair {
  int first;
  float2 unscaling[2];
  float bias[2];
};

template <typename S>
__device__ inline FeaturePair LoadFeatures(const ProductTask& task, const Tile& tile, int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  FeaturePair pair;
  pair.first = tile.features + group * kWeightBlockRows + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // Prepared weights are padded with rows of zeros.
    pair.bias[i] = __ldg(task.bias + pair.first + 8 * i);
    if (S::kScaled) {
      pair.unscaling[i] = Unscaling(__ldg(task.weight_exponents + pair.first + 8 * i));
    }
  }
  return pair;
}

// Fills the warpgroup's scales for a tile, once all of it has read the previous ones.
template <typename S>
__device__ inline void LoadScales(const ProductTask& task, const Tile& tile, int group,
                                  float2* scales) {
  if constexpr (S::kScaled) {
    SyncThreads(1 + group, kWarpgroup);
    for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < S::kColumns; i += kWarpgroup) {
      const int sample = tile.samples + i;
      const bool scaled = task.x != nullptr && sample < task.samples;
      scales[i] = Unscaling(scaled ? __ldcg(task.x_exponents + sample) : 0);
    }
    SyncThreads(1 + group, kWarpgroup);
  }
}

// kWhole: all samples and features of the tile exist.
template <typename S, bool kWhole>
__device__ inline void StoreSums(const ProductTask& task, const Tile& tile, const FeaturePair& pair,
                                 const float2* scales, const float (&d)[S::kRegisters]) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  float* z = task.z + (tile.samples + column) * task.z_pitch + pair.first;
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (!kWhole && tile.samples + 8 * j + column + e >= task.samples) return;
      const float2 scale = S::kScaled ? scales[8 * j + column + e] : make_float2(1, 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float value = d[4 * j + 2 * i + e];
        if (S::kScaled) {
          value = fmaf(value * (scale.x * pair.unscaling[i].x), scale.y * pair.unscaling[i].y,
                       pair.bias[i]);
        } else {
          value += pair.bias[i];
        }
        if (kWhole || pair.first + 8 * i < task.features) z[e * task.z_pitch + 8 * i] = value;
      }
    }
    z += 8 * task.z_pitch;
  }
}

template <typename S>
__device__ inline void Store(const ProductTask& task, const Tile& tile, const FeaturePair& pair,
                             const float2* scales, const float (&d)[S::kRegisters]) {
  if (tile.samples + S::kColumns <= task.samples && tile.features + S::kFeatures <= task.features) {
    StoreSums<S, true>(task, tile, pair, scales, d);
  } else {
    StoreSums<S, false>(task, tile, pair, scales, d);
  }
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_LINEAR_TENSOR_STORE_CUH_
