#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cpu/linear_norm.h"
#include "kernels/cpu/normalize.h"
#include "kernels/norm_c_convert.h"

namespace norm = normd::norm;
using norm::Status;

struct norm_cpu_executor {
  explicit norm_cpu_executor(int max_threads) : executor(max_threads) {}
  norm::cpu::Executor executor;
};

struct norm_cpu_linear {
  std::unique_ptr<norm::cpu::LinearNorm> layer;
  norm::DType dtype;
};

norm_result norm_cpu_executor_create(int32_t max_threads, norm_cpu_executor** out) {
  return norm::c::Guarded([&]() -> Status {
    if (Status status = norm::c::CheckNotNull("out", out); !status.ok()) return status;
    constexpr std::int32_t kMostThreads = 4096;
    if (max_threads < 0 || max_threads > kMostThreads) {
      return norm::InvalidArgument("max_threads: " + std::to_string(max_threads) +
                                   ", wanted from 0 to " + std::to_string(kMostThreads));
    }
    *out = new norm_cpu_executor(max_threads);
    return Status();
  });
}

void norm_cpu_executor_destroy(norm_cpu_executor* executor) { delete executor; }

namespace {

template <typename... Tensors>
norm_result Normalize(const norm_cpu_executor* executor, const norm_spec* spec,
                      const norm_params* params, Tensors... tensors) {
  return norm::c::Guarded([&]() -> Status {
    norm::NormSpec cpp_spec;
    norm::NormParams cpp_params;
    norm::c::Segments segments;
    for (const Status& status :
         {norm::c::CheckNotNull("executor", executor), norm::c::ToSpec(spec, &cpp_spec),
          norm::c::ToParams(params, &cpp_params), segments.Take(tensors...)}) {
      if (!status.ok()) return status;
    }
    return executor->executor.Normalize(cpp_spec, cpp_params, segments.data(), segments.size());
  });
}

}  // namespace

norm_result norm_cpu_normalize(const norm_cpu_executor* executor, const norm_spec* spec,
                               const norm_params* params, const norm_segment* segments,
                               size_t count) {
  return Normalize(executor, spec, params, segments, count);
}

norm_result norm_cpu_normalize_batch(const norm_cpu_executor* executor, const norm_spec* spec,
                                     const norm_params* params, const norm_batch* batch) {
  return Normalize(executor, spec, params, batch);
}

norm_result norm_cpu_linear_create(const norm_cpu_executor* executor, const norm_linear_spec* spec,
                                   const norm_linear_params* params, norm_cpu_linear** out) {
  return norm::c::Guarded([&]() -> Status {
    norm::LinearNormSpec cpp_spec;
    norm::LinearNormParams cpp_params;
    for (const Status& status :
         {norm::c::CheckNotNull("executor", executor), norm::c::CheckNotNull("out", out),
          norm::c::ToLinearSpec(spec, &cpp_spec), norm::c::ToLinearParams(params, &cpp_params)}) {
      if (!status.ok()) return status;
    }
    auto linear = std::make_unique<norm_cpu_linear>();
    linear->dtype = cpp_spec.dtype;
    Status status =
        norm::cpu::LinearNorm::Create(executor->executor, cpp_spec, cpp_params, &linear->layer);
    if (status.ok()) *out = linear.release();
    return status;
  });
}

void norm_cpu_linear_destroy(norm_cpu_linear* linear) { delete linear; }

norm_result norm_cpu_linear_norm(const norm_cpu_linear* linear, const norm_linear_segment* segments,
                                 size_t count) {
  return norm::c::Guarded([&]() -> Status {
    for (const Status& status :
         {norm::c::CheckNotNull("linear", linear), norm::c::CheckSegments(segments, count)}) {
      if (!status.ok()) return status;
    }
    return linear->layer->Compute(linear->dtype, norm::c::ToSegments(segments), count);
  });
}
