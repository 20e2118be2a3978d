// The interface between the kernels' tests and the backends: the same bodies run against every
// backend. Each test binary links exactly one implementation of MakeKernelBackend().

#ifndef NORMD_TESTS_SUPPORT_KERNEL_BACKEND_H_
#define NORMD_TESTS_SUPPORT_KERNEL_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/norm.h"

namespace normd::norm::testing {

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  virtual std::string Name() const = 0;

  // False if this machine lacks the device; tests then skip.
  virtual bool Available() const = 0;

  // Computes a batch in host memory, including parameters, and returns when its outputs are
  // complete. A backend with its own memory copies in and out, keeps each tensor's alignment modulo
  // 256 and the aliasing of inputs and outputs, and writes back only the outputs.
  virtual Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                           std::size_t count) = 0;
};

// `threads` is for backends that compute on threads of the host; 0 is their default.
std::unique_ptr<KernelBackend> MakeKernelBackend(int threads = 0);

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_KERNEL_BACKEND_H_
