#include "kernels/norm_c_convert.h"

namespace norm = normd::norm;

namespace {

norm_result NoCpu() {
  return norm::c::Guarded(
      [] { return norm::Status(norm::StatusCode::kUnsupported, "this build has no CPU kernels"); });
}

}  // namespace

norm_result norm_cpu_executor_create(int32_t, norm_cpu_executor**) { return NoCpu(); }
void norm_cpu_executor_destroy(norm_cpu_executor*) {}
norm_result norm_cpu_normalize(const norm_cpu_executor*, const norm_spec*, const norm_params*,
                               const norm_segment*, size_t) {
  return NoCpu();
}
norm_result norm_cpu_normalize_batch(const norm_cpu_executor*, const norm_spec*, const norm_params*,
                                     const norm_batch*) {
  return NoCpu();
}
norm_result norm_cpu_linear_create(const norm_cpu_executor*, const norm_linear_spec*,
                                   const norm_linear_params*, norm_cpu_linear**) {
  return NoCpu();
}
void norm_cpu_linear_destroy(norm_cpu_linear*) {}
norm_result norm_cpu_linear_norm(const norm_cpu_linear*, const norm_linear_segment*, size_t) {
  return NoCpu();
}
