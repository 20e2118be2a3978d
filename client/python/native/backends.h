// The kernels' C ABI on the tensors' own device.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_BACKENDS_H_
#define NORMD_CLIENT_PYTHON_NATIVE_BACKENDS_H_

#include <cstdint>
#include <functional>

#include "client/python/native/tensor.h"
#include "kernels/norm_c.h"

namespace normd::torch_ops {

// Computes one batch on the device of `x`: on the CPU with as many threads as PyTorch uses,
// blocking; on CUDA enqueued on PyTorch's current stream, with workspace from PyTorch's allocator.
// Thread-safe. Throws std::runtime_error.
void Normalize(const char* name, const Tensor& x, const norm_spec& spec, const norm_params& params,
               const norm_tensors& tensors);

// Throws std::runtime_error("normd::NAME: " and norm_last_error()) unless `result` is NORM_OK.
void CheckKernels(const char* name, norm_result result);

// The executor with as many threads as PyTorch uses; it lives as long as the process.
const norm_cpu_executor* CpuExecutor();

// A CUDA device and its current stream; the device is current while this lives.
class CudaScope {
 public:
  CudaScope(const char* name, const Tensor& x);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  const norm_cuda_device* device() const { return device_; }
  void* stream() const { return stream_; }
  // Whether the stream is being captured into a graph.
  bool IsCapturing() const;

 private:
  const norm_cuda_device* device_ = nullptr;
  void* stream_ = nullptr;
  CudaGuardOpaque* guard_ = nullptr;
};

// `bytes` of new memory on the device of `x`.
Tensor NewBytes(std::int64_t bytes, const Tensor& x);

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_BACKENDS_H_
