#include "kernels/norm_c_convert.h"

namespace norm = normd::norm;

namespace {

norm_result NoCuda() {
  return norm::c::Guarded([] {
    return norm::Status(norm::StatusCode::kUnsupported, "this build has no CUDA kernels");
  });
}

}  // namespace

norm_result norm_cuda_device_open(int32_t, norm_cuda_device**) { return NoCuda(); }
void norm_cuda_device_close(norm_cuda_device*) {}
norm_result norm_cuda_workspace_bytes(const norm_cuda_device*, const norm_spec*,
                                      const norm_segment*, size_t, const char*, size_t*) {
  return NoCuda();
}
norm_result norm_cuda_workspace_init(void*, size_t, void*) { return NoCuda(); }
norm_result norm_cuda_normalize(const norm_cuda_device*, const norm_spec*, const norm_params*,
                                const norm_segment*, size_t, const norm_cuda_launch*) {
  return NoCuda();
}
norm_result norm_cuda_batch_workspace_bytes(const norm_cuda_device*, const norm_spec*,
                                            const norm_batch*, const char*, size_t*) {
  return NoCuda();
}
norm_result norm_cuda_normalize_batch(const norm_cuda_device*, const norm_spec*, const norm_params*,
                                      const norm_batch*, const norm_cuda_launch*) {
  return NoCuda();
}
norm_result norm_cuda_linear_weight_bytes(const norm_cuda_device*, const norm_linear_spec*,
                                          size_t*) {
  return NoCuda();
}
norm_result norm_cuda_linear_prepare(const norm_cuda_device*, const norm_linear_spec*,
                                     const norm_linear_params*, void*, size_t, void*) {
  return NoCuda();
}
norm_result norm_cuda_linear_workspace_bytes(const norm_cuda_device*, const norm_linear_spec*,
                                             int64_t, const char*, size_t*) {
  return NoCuda();
}
norm_result norm_cuda_linear_norm(const norm_cuda_device*, const norm_linear_spec*, const void*,
                                  const norm_linear_segment*, size_t, const norm_cuda_launch*) {
  return NoCuda();
}
