// Factors and offsets of each sample's channels, for specialised kernels that take them as gamma
// and beta.
//
// Bytes: two numbers per channel of a sample, at most a sixteenth of its bytes (stage_plan.cc). A
// style tensor is read once, for its statistics (stages.cu).

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/stages/stage_batch.cuh"
#include "kernels/cuda/stages/stages.h"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1 << 16;

// A kernel parameter.
struct SampleAffineTask {
  std::int64_t samples;
  std::int64_t channels;
  ParamVector gamma;
  ParamVector beta;
  ParamVector scale;  // [samples, channels]
  ParamVector shift;
  Style style;
  DType dtype;
  const void* styles;  // style_index or style_weights
  std::int64_t style_count;
  Constant weight_offset;
  Constant scale_offset;
  void* factors;
  void* offsets;
};

// gamma or beta of a sample's channel; with kMix summed in the order of the table.
template <typename A>
__device__ inline A OfStyle(const SampleAffineTask& task, const ParamVector& param,
                            std::int64_t sample, std::int64_t channel) {
  if (task.style == Style::kMix) {
    const ParamVector weights = {task.styles, task.dtype};
    A sum = 0;
    for (std::int64_t k = 0; k < task.style_count; ++k) {
      sum = Fma(LoadParam(weights, sample * task.style_count + k, A(0)),
                LoadParam(param, k * task.channels + channel, A(0)), sum);
    }
    return sum;
  }
  std::int64_t index = 0;
  if (task.style == Style::kIndex) {
    index = __ldg(static_cast<const long long*>(task.styles) + sample);
    if (index < 0 || index >= task.style_count) return static_cast<A>(NAN);
  }
  return LoadParam(param, index * task.channels + channel, A(0));
}

template <typename A>
__global__ void __launch_bounds__(kThreads) Factors(const __grid_constant__ SampleAffineTask task) {
  AwaitPreviousKernel();
  A* const factors = static_cast<A*>(task.factors);
  A* const offsets = static_cast<A*>(task.offsets);
  const std::int64_t count = task.samples * task.channels;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t sample = i / task.channels;
    const std::int64_t channel = i - sample * task.channels;
    A factor = 1;
    A offset = 0;
    if (task.style == Style::kTensor) {
      factor = factors[i];
      offset = offsets[i];
    }
    if (task.gamma.data != nullptr) {
      factor = OfStyle<A>(task, task.gamma, sample, channel) + task.weight_offset.template As<A>();
    }
    if (task.beta.data != nullptr) offset = OfStyle<A>(task, task.beta, sample, channel);
    if (task.scale.data != nullptr) {
      const A scale = task.scale_offset.template As<A>() + LoadParam(task.scale, i, A(0));
      factor *= scale;
      if (task.beta.data != nullptr || task.style == Style::kTensor) offset *= scale;
    }
    offset += LoadParam(task.shift, i, A(-0.0));
    factors[i] = factor;
    offsets[i] = offset;
  }
}

std::int64_t AccumulatorBytes(const NormSpec& spec) {
  return spec.dtype == DType::kFloat64 ? 8 : 4;
}

// The mean and the deviation of each channel of the second tensor.
Status EnqueueDeviations(const SampleAffineLaunch& launch, void* offsets) {
  NormSpec spec = InstanceNormSpec(launch.spec.channels, launch.spec.dtype);
  spec.layout = launch.spec.layout;
  spec.eps = launch.spec.eps;
  Segment segment;
  segment.x = launch.segment.style_tensor;
  segment.samples = launch.segment.samples;
  segment.spatial = launch.segment.style_spatial;
  segment.mean_out = offsets;
  segment.rstd_out = launch.factors;
  const NormParams none;
  Plan plan;
  PlanStages(spec, segment.spatial, launch.limits, &plan);
  return LaunchDeviations(
      {spec, none, launch.limits, plan, &segment, 1, launch.stream, nullptr, nullptr});
}

}  // namespace

std::size_t FactorsBytes(const NormSpec& spec, std::int64_t samples) {
  return static_cast<std::size_t>(2 * samples * spec.channels * AccumulatorBytes(spec));
}

Status LaunchSampleAffine(const SampleAffineLaunch& launch) {
  const NormSpec& spec = launch.spec;
  const std::int64_t count = launch.segment.samples * spec.channels;
  SampleAffineTask task = {};
  task.samples = launch.segment.samples;
  task.channels = spec.channels;
  task.gamma = launch.params.gamma;
  task.beta = launch.params.beta;
  task.scale = {launch.segment.scale, spec.dtype};
  task.shift = {launch.segment.shift, spec.dtype};
  task.style = spec.style;
  task.dtype = spec.dtype;
  task.styles =
      spec.style == Style::kMix ? launch.segment.style_weights : launch.segment.style_index;
  task.style_count = spec.styles;
  task.weight_offset = Addend(spec.weight_offset);
  task.scale_offset = Addend(spec.scale_offset);
  task.factors = launch.factors;
  task.offsets = static_cast<char*>(launch.factors) + count * AccumulatorBytes(spec);
  if (spec.style == Style::kTensor) {
    if (Status status = EnqueueDeviations(launch, task.offsets); !status.ok()) return status;
    if (!spec.scale && !spec.shift) return Status();
  }
  const auto blocks =
      static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMaxBlocks));
  const auto kernel = spec.dtype == DType::kFloat64 ? Factors<double> : Factors<float>;
  return ToStatus(LaunchOverlapping(launch.limits, launch.stream, kernel, blocks, kThreads, task),
                  "factors");
}

}  // namespace normd::norm::cuda
