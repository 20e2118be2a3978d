// The fused layer of kernels/linear_norm.h on the CPU: oneDNN for the products, Highway for the
// rest.

#ifndef NORMD_KERNELS_CPU_LINEAR_NORM_H_
#define NORMD_KERNELS_CPU_LINEAR_NORM_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/normalize.h"
#include "kernels/linear_norm.h"

namespace normd::norm::cpu {

// One layer with its weights prepared. Thread-safe: calls may overlap and then share the executor's
// threads.
//
// The arithmetic is float32 for every Precision, which is at least as accurate as each requires:
// products and sums in float32 (fused multiply-adds in the order of I), statistics as in
// Executor::Normalize, float64 parameters rounded to float32. A sample's bits depend on the sample
// and the layer alone, for any number of threads.
class LinearNorm {
 public:
  // Converts the weight to float32 and packs it for the products: about F * I * 4 bytes, beside the
  // caller's copy, which need not outlive the call. `executor` outlives the layer. spec.dtype is
  // ignored. Blocks for some hundred milliseconds per GiB. Errors: InvalidArgument as
  // ValidateLinearNorm; OutOfMemory; Unsupported when oneDNN has no product for this machine.
  static Status Create(const Executor& executor, const LinearNormSpec& spec,
                       const LinearNormParams& params, std::unique_ptr<LinearNorm>* out);
  ~LinearNorm();
  LinearNorm(const LinearNorm&) = delete;
  LinearNorm& operator=(const LinearNorm&) = delete;

  // Computes a batch of host memory whose tensors are of `dtype`, and returns when it is done.
  // Small batches run on the caller's thread alone. Errors: InvalidArgument as
  // ValidateLinearNormSegments, before anything is written; OutOfMemory if the workspace cannot be
  // allocated: at most some 16 MiB for each running call, kept for the next.
  Status Compute(DType dtype, const LinearNormSegment* segments, std::size_t count) const;

 private:
  struct Impl;
  explicit LinearNorm(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_LINEAR_NORM_H_
