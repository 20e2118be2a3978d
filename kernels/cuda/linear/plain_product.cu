// The fused layer's matrix product in float32 arithmetic. Every sum is one chain of fused
// multiply-adds in the order of the elements, so a tile's size changes no bit.

#include "kernels/cuda/linear/linear_launch.h"

namespace normd::norm::cuda {
namespace {

// A block computes kFeatures x kSamples of z, a thread kThreadFeatures x kThreadSamples of them, in
// vectors of kVector samples; operands go through shared memory in runs of kDepth elements.
template <int kFeatures_, int kSamples_, int kDepth_, int kThreadFeatures_, int kThreadSamples_,
          int kVector_>
struct Shape {
  static constexpr int kFeatures = kFeatures_;
  static constexpr int kSamples = kSamples_;
  static constexpr int kDepth = kDepth_;
  static constexpr int kThreadFeatures = kThreadFeatures_;
  static constexpr int kThreadSamples = kThreadSamples_;
  static constexpr int kVector = kVector_;
  static constexpr int kFeatureThreads = kFeatures / kThreadFeatures;
  static constexpr int kSampleThreads = kSamples / kThreadSamples;
  static constexpr int kThreads = kFeatureThreads * kSampleThreads;
};
using Large = Shape<128, 128, 16, 8, 8, 4>;
using Small = Shape<64, 16, 64, 4, 2, 2>;

// The elements [0, kDepth) of kRows rows, moved through a thread's registers into shared memory,
// where the rows lie side by side.
template <int kRows, int kDepth, int kThreads>
struct Slab {
  static constexpr int kQuads = kDepth / 4;
  static constexpr int kPerThread = kRows * kQuads / kThreads;
  static constexpr int kPitch = kRows + 4;
  static_assert(kRows * kQuads % kThreads == 0, "every thread carries the same");

  float4 quads[kPerThread];

  __device__ void Load(const float* rows, std::int64_t k) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      quads[i] = __ldg(reinterpret_cast<const float4*>(rows + at / kQuads * k) + at % kQuads);
    }
  }
  __device__ void Store(float (*shared)[kPitch]) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = at / kQuads;
      float(*const to)[kPitch] = shared + at % kQuads * 4;
      to[0][row] = quads[i].x;
      to[1][row] = quads[i].y;
      to[2][row] = quads[i].z;
      to[3][row] = quads[i].w;
    }
  }
};

// The place of a thread's i-th row when `threads` threads take vectors in turn.
template <int kVector>
__device__ inline int RowOf(int i, int thread, int threads) {
  return (i / kVector * threads + thread) * kVector + i % kVector;
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads)
    PlainProductKernel(const __grid_constant__ ProductTask task) {
  using WeightSlab = Slab<S::kFeatures, S::kDepth, S::kThreads>;
  using XSlab = Slab<S::kSamples, S::kDepth, S::kThreads>;
  __shared__ __align__(16) float weight_shared[S::kDepth][WeightSlab::kPitch];
  __shared__ __align__(16) float x_shared[S::kDepth][XSlab::kPitch];
  const int feature_thread = static_cast<int>(threadIdx.x) % S::kFeatureThreads;
  const int sample_thread = static_cast<int>(threadIdx.x) / S::kFeatureThreads;
  const std::int64_t first_feature = std::int64_t{blockIdx.x} * S::kFeatures;
  const std::int64_t first_sample = std::int64_t{blockIdx.y} * S::kSamples;
  const float* weight = reinterpret_cast<const float*>(task.weight) + first_feature * task.k;
  const float* x = reinterpret_cast<const float*>(task.x) + first_sample * task.k;

  float sums[S::kThreadFeatures][S::kThreadSamples] = {};
  WeightSlab weight_slab;
  XSlab x_slab;
  weight_slab.Load(weight, task.k);
  x_slab.Load(x, task.k);
  for (std::int64_t k = 0; k < task.k; k += S::kDepth) {
    weight_slab.Store(weight_shared);
    x_slab.Store(x_shared);
    __syncthreads();
    if (k + S::kDepth < task.k) {
      weight_slab.Load(weight + k + S::kDepth, task.k);
      x_slab.Load(x + k + S::kDepth, task.k);
    }
#pragma unroll 8
    for (int i = 0; i < S::kDepth; ++i) {
      float w[S::kThreadFeatures], v[S::kThreadSamples];
#pragma unroll
      for (int f = 0; f < S::kThreadFeatures; ++f) {
        w[f] = weight_shared[i][RowOf<4>(f, feature_thread, S::kFeatureThreads)];
      }
#pragma unroll
      for (int s = 0; s < S::kThreadSamples; ++s) {
        v[s] = x_shared[i][RowOf<S::kVector>(s, sample_thread, S::kSampleThreads)];
      }
#pragma unroll
      for (int f = 0; f < S::kThreadFeatures; ++f) {
#pragma unroll
        for (int s = 0; s < S::kThreadSamples; ++s) sums[f][s] = fmaf(w[f], v[s], sums[f][s]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int s = 0; s < S::kThreadSamples; ++s) {
    const std::int64_t sample =
        first_sample + RowOf<S::kVector>(s, sample_thread, S::kSampleThreads);
#pragma unroll
    for (int f = 0; f < S::kThreadFeatures; ++f) {
      const std::int64_t feature = first_feature + RowOf<4>(f, feature_thread, S::kFeatureThreads);
      if (sample < task.samples && feature < task.features) {
        task.z[sample * task.z_pitch + feature] = sums[f][s] + __ldg(task.bias + feature);
      }
    }
  }
}

template <typename S>
cudaError_t Launch(const ProductTask& task, cudaStream_t stream) {
  const dim3 blocks((task.features + S::kFeatures - 1) / S::kFeatures,
                    (task.samples + S::kSamples - 1) / S::kSamples);
  PlainProductKernel<S><<<blocks, S::kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchPlainProduct(const LinearPlan& plan, const ProductTask& task,
                               cudaStream_t stream) {
  return plan.tile_samples == Small::kSamples ? Launch<Small>(task, stream)
                                              : Launch<Large>(task, stream);
}

}  // namespace normd::norm::cuda
