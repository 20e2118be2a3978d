#include "kernels/bench/cuda_linear_reference.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace normd::norm::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr std::int64_t kMaxSamples = 16;

__device__ double Load(DType dtype, const void* data, std::int64_t i) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<const float*>(data)[i];
    case DType::kFloat64: return static_cast<const double*>(data)[i];
    case DType::kFloat16: return __half2float(static_cast<const __half*>(data)[i]);
    case DType::kBFloat16: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  }
  return 0;
}

// z[n, f] of sample n * stride: one warp per feature.
__global__ void ProductKernel(LinearNormSpec spec, LinearNormParams params, const void* x,
                              std::int64_t stride, double* z) {
  const std::int64_t feature =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  if (feature >= spec.out_features) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t sample = blockIdx.y * stride;
  double sum = 0;
  for (std::int64_t k = lane; k < spec.in_features; k += kLanes) {
    sum += Load(spec.dtype, x, sample * spec.in_features + k) *
           Load(params.weight.dtype, params.weight.data, feature * spec.in_features + k);
  }
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (params.bias.data != nullptr) sum += Load(params.bias.dtype, params.bias.data, feature);
  if (lane == 0) z[blockIdx.y * spec.out_features + feature] = sum;
}

struct FreeDevice {
  void operator()(void* data) const { cudaFree(data); }
};

// Rows of the compared samples, on the host.
struct Samples {
  std::vector<double> z;
  std::vector<float> y;
  std::vector<float> out;
};

__global__ void WidenKernel(DType dtype, const void* data, std::int64_t features,
                            std::int64_t stride, float* to) {
  const std::int64_t feature = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (feature >= features) return;
  to[blockIdx.y * features + feature] =
      static_cast<float>(Load(dtype, data, blockIdx.y * stride * features + feature));
}

cudaError_t Collect(const LinearNormSpec& spec, const LinearNormParams& params,
                    const LinearNormSegment& segment, std::int64_t count, std::int64_t stride,
                    cudaStream_t stream, Samples* samples) {
  const std::size_t elements = static_cast<std::size_t>(count * spec.out_features);
  void* memory = nullptr;
  if (cudaError_t error = cudaMalloc(&memory, elements * sizeof(double)); error != cudaSuccess) {
    return error;
  }
  const std::unique_ptr<void, FreeDevice> owner(memory);
  const auto rows = static_cast<unsigned>(count);
  const auto blocks = [&](std::int64_t threads) {
    return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads), rows);
  };
  ProductKernel<<<blocks(spec.out_features * kLanes), kThreads, 0, stream>>>(
      spec, params, segment.x, stride, static_cast<double*>(memory));
  samples->z.resize(elements);
  cudaError_t error = cudaMemcpyAsync(samples->z.data(), memory, elements * sizeof(double),
                                      cudaMemcpyDeviceToHost, stream);
  for (auto [from, to] : {std::pair(segment.y, &samples->y),
                          std::pair(static_cast<const void*>(segment.out), &samples->out)}) {
    to->assign(elements, 0);
    if (error != cudaSuccess || from == nullptr) continue;
    WidenKernel<<<blocks(spec.out_features), kThreads, 0, stream>>>(
        spec.dtype, from, spec.out_features, stride, static_cast<float*>(memory));
    error = cudaMemcpyAsync(to->data(), memory, elements * sizeof(float), cudaMemcpyDeviceToHost,
                            stream);
  }
  if (error == cudaSuccess) error = cudaGetLastError();
  const cudaError_t done = cudaStreamSynchronize(stream);
  return error == cudaSuccess ? done : error;
}

}  // namespace

cudaError_t LinearErrorOnDevice(const LinearNormSpec& spec, const LinearNormParams& params,
                                const LinearNormSegment& segment, cudaStream_t stream,
                                LinearError* out) {
  *out = LinearError();
  if (segment.samples == 0) return cudaSuccess;
  const std::int64_t stride = (segment.samples + kMaxSamples - 1) / kMaxSamples;
  out->samples = (segment.samples + stride - 1) / stride;
  Samples samples;
  const cudaError_t error = Collect(spec, params, segment, out->samples, stride, stream, &samples);
  if (error != cudaSuccess) return error;
  const auto features = static_cast<std::size_t>(spec.out_features);
  double squares = 0, norm_squares = 0;
  for (std::size_t begin = 0; begin < samples.z.size(); begin += features) {
    double mean = 0, variance = 0;
    for (std::size_t i = begin; i < begin + features; ++i) mean += samples.z[i];
    mean /= static_cast<double>(features);
    for (std::size_t i = begin; i < begin + features; ++i) {
      variance += (samples.z[i] - mean) * (samples.z[i] - mean);
    }
    variance /= static_cast<double>(features);
    for (std::size_t i = begin; i < begin + features; ++i) {
      double want = (samples.z[i] - mean) / std::sqrt(variance + spec.eps);
      if (spec.epilogue.add) want += samples.y[i];
      if (spec.epilogue.multiply) want *= samples.y[i];
      double difference = std::fabs(samples.out[i] - want);
      if (std::isnan(want) && std::isnan(samples.out[i])) difference = want = 0;
      if (std::isnan(difference)) difference = INFINITY;
      squares += difference * difference;
      norm_squares += want * want;
      out->max = std::max(out->max, difference);
    }
  }
  out->relative = std::sqrt(squares / norm_squares);
  return cudaSuccess;
}

}  // namespace normd::norm::bench
