// The part of the fused layer after the product: statistics of a sample's z, the norm, the
// epilogue. One block takes a sample. Up to kResident features stay in registers, so z is read
// once, from the L2 cache into which the product has just written it; longer samples are read three
// times.
//
// The mean is summed first, then the deviations from it and their squares; the sum of the
// deviations corrects the mean's rounding error. All sums have one order.

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/linear/linear_launch.h"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr int kQuad = 4;
constexpr int kHeld = 8;  // Quads of elements that a thread holds.
constexpr int kResident = kThreads * kQuad * kHeld;

struct Sample {
  const float* z;
  const char* y;
  char* out;
};

__device__ inline Sample FindSample(const FinishTask& task, std::int64_t element_bytes) {
  const std::int32_t sample = static_cast<std::int32_t>(blockIdx.x);
  std::int32_t begin = 0;
  int segment = 0;
  while (task.batch.segments[segment].end <= sample) begin = task.batch.segments[segment++].end;
  const LinearRows& rows = task.batch.segments[segment];
  const std::int64_t skipped = (sample - begin) * std::int64_t{task.features} * element_bytes;
  return {task.z + sample * task.z_pitch, rows.y == nullptr ? nullptr : rows.y + skipped,
          rows.out + skipped};
}

// Four elements of T as one access.
template <typename T>
using Word = std::conditional_t<sizeof(T) == 4, uint4, uint2>;

template <typename T>
__device__ inline bool IsWhole(const char* address, int present) {
  return present == kQuad && reinterpret_cast<std::uintptr_t>(address) % sizeof(Word<T>) == 0;
}

// Elements [index, index + 4) of an array of T, of which `present` exist, unconverted.
template <typename T>
__device__ inline Word<T> LoadWord(const char* data, int index, int present) {
  const char* const address = data + std::int64_t{index} * sizeof(T);
  if (IsWhole<T>(address, present)) return __ldcs(reinterpret_cast<const Word<T>*>(address));
  T elements[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    elements[i] = i < present ? reinterpret_cast<const T*>(address)[i] : Narrow<T>(0);
  }
  Word<T> word;
  memcpy(&word, elements, sizeof(word));
  return word;
}

template <typename T>
__device__ inline void WidenWord(const Word<T>& word, float (&values)[kQuad]) {
  T elements[kQuad];
  memcpy(elements, &word, sizeof(word));
#pragma unroll
  for (int i = 0; i < kQuad; ++i) values[i] = Widen(elements[i]);
}

template <typename T>
__device__ inline void LoadQuad(const char* data, int index, int present, float (&values)[kQuad]) {
  WidenWord<T>(LoadWord<T>(data, index, present), values);
}

template <typename T>
__device__ inline void StoreQuad(char* data, int index, int present, const float (&values)[kQuad]) {
  char* const address = data + std::int64_t{index} * sizeof(T);
  T elements[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) elements[i] = Narrow<T>(values[i]);
  if (IsWhole<T>(address, present)) {
    Word<T> word;
    memcpy(&word, elements, sizeof(word));
    __stcs(reinterpret_cast<Word<T>*>(address), word);
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < present) reinterpret_cast<T*>(address)[i] = elements[i];
  }
}

// The sum over the block, in every thread.
__device__ inline float2 BlockSum(float2 value, float2* warps) {
  value.x = GroupSum(value.x, kLanes);
  value.y = GroupSum(value.y, kLanes);
  if (threadIdx.x % kLanes == 0) warps[threadIdx.x / kLanes] = value;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  value = lane < kWarps ? warps[lane] : make_float2(0, 0);
  return make_float2(GroupSum(value.x, kLanes), GroupSum(value.y, kLanes));
}

__device__ inline int Present(const FinishTask& task, int index) {
  return max(0, min(kQuad, task.features - index));
}

__device__ inline int QuadIndex(int i) {
  return (i * kThreads + static_cast<int>(threadIdx.x)) * kQuad;
}

__device__ inline void AddDeviations(float (&values)[kQuad], float mean, int present,
                                     float2* sums) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    values[i] = i < present ? values[i] - mean : 0.f;
    sums->x += values[i];
    sums->y = Fma(values[i], values[i], sums->y);
  }
}

// The scale of deviations from the rounded mean.
struct Scale {
  float residue;
  float rstd;
};

__device__ inline Scale FinishScale(const FinishTask& task, float2 sums) {
  const float count = static_cast<float>(task.features);
  const float residue = sums.x / count;
  const float variance = Fma(-residue, residue, sums.y / count);
  if (isinf(variance)) return {residue, NAN};  // As FinishRow of a norm.
  return {residue, rsqrtf((variance < 0 ? 0.f : variance) + task.eps)};
}

template <typename T>
__device__ inline void Apply(const FinishTask& task, const Scale& scale, const float (&y)[kQuad],
                             float (&values)[kQuad]) {
  const Epilogue& epilogue = task.epilogue;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    // -0 changes no product.
    float v = Fma(values[i] - scale.residue, scale.rstd, epilogue.add ? y[i] : -0.0f);
    if (epilogue.multiply) v *= y[i];
    values[i] = v;
  }
  if (epilogue.activation != Activation::kNone) {
    Activate<T>(epilogue.activation, epilogue.leaky_slope, values);
  }
}

// Blocks whose registers a multiprocessor holds, one sample each.
template <typename T>
inline constexpr int kResidentBlocks = sizeof(T) == 2 ? 3 : 2;

template <typename T>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<T>)
    FinishResidentKernel(const __grid_constant__ FinishTask task) {
  __shared__ float2 warps[2][kWarps];
  const Sample sample = FindSample(task, sizeof(T));
  float values[kHeld][kQuad];
  Word<T> words[kHeld] = {};  // Elements of y.
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int index = QuadIndex(i);
    if (sample.y != nullptr) words[i] = LoadWord<T>(sample.y, index, Present(task, index));
  }
  AwaitPreviousKernel();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int index = QuadIndex(i);
    LoadQuad<float>(reinterpret_cast<const char*>(sample.z), index, Present(task, index),
                    values[i]);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) sum.x += values[i][j];
  }
  const float mean = BlockSum(sum, warps[0]).x / static_cast<float>(task.features);
  sum = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    AddDeviations(values[i], mean, Present(task, QuadIndex(i)), &sum);
  }
  const Scale scale = FinishScale(task, BlockSum(sum, warps[1]));
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int index = QuadIndex(i);
    float y[kQuad];
    WidenWord<T>(words[i], y);
    Apply<T>(task, scale, y, values[i]);
    StoreQuad<T>(sample.out, index, Present(task, index), values[i]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FinishStreamedKernel(const __grid_constant__ FinishTask task) {
  __shared__ float2 warps[2][kWarps];
  const Sample sample = FindSample(task, sizeof(T));
  const char* const z = reinterpret_cast<const char*>(sample.z);
  const int quads = (task.features - 1) / (kThreads * kQuad) + 1;
  float values[kQuad];
  float2 sum = make_float2(0, 0);
  AwaitPreviousKernel();
  for (int i = 0; i < quads; ++i) {
    LoadQuad<float>(z, QuadIndex(i), Present(task, QuadIndex(i)), values);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) sum.x += values[j];
  }
  const float mean = BlockSum(sum, warps[0]).x / static_cast<float>(task.features);
  sum = make_float2(0, 0);
  for (int i = 0; i < quads; ++i) {
    const int index = QuadIndex(i);
    LoadQuad<float>(z, index, Present(task, index), values);
    AddDeviations(values, mean, Present(task, index), &sum);
  }
  const Scale scale = FinishScale(task, BlockSum(sum, warps[1]));
  for (int i = 0; i < quads; ++i) {
    const int index = QuadIndex(i);
    float y[kQuad] = {};
    LoadQuad<float>(z, index, Present(task, index), values);
    if (sample.y != nullptr) LoadQuad<T>(sample.y, index, Present(task, index), y);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] -= mean;
    Apply<T>(task, scale, y, values);
    StoreQuad<T>(sample.out, index, Present(task, index), values);
  }
}

template <typename T>
cudaError_t Launch(const FinishTask& task, bool overlaps, cudaStream_t stream) {
  cudaLaunchAttribute overlap = OverlapPrevious(true);
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(task.batch.samples);
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = overlaps ? 1 : 0;
  return task.features <= kResident ? cudaLaunchKernelEx(&config, FinishResidentKernel<T>, task)
                                    : cudaLaunchKernelEx(&config, FinishStreamedKernel<T>, task);
}

}  // namespace

cudaError_t LaunchFinish(const FinishTask& task, bool overlaps, cudaStream_t stream) {
  switch (task.dtype) {
    case DType::kFloat16: return Launch<Half>(task, overlaps, stream);
    case DType::kBFloat16: return Launch<BFloat>(task, overlaps, stream);
    default: return Launch<float>(task, overlaps, stream);
  }
}

}  // namespace normd::norm::cuda
