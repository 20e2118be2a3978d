// The interface between the fused layer's tests and the backends, like kernel_backend.h for the
// norms. Each test binary with linear_norm_test.cc links one implementation of
// MakeLinearNormBackend().

#ifndef NORMD_TESTS_SUPPORT_LINEAR_NORM_BACKEND_H_
#define NORMD_TESTS_SUPPORT_LINEAR_NORM_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/linear_norm.h"

namespace normd::norm::testing {

class LinearNormBackend {
 public:
  virtual ~LinearNormBackend() = default;

  virtual std::string Name() const = 0;

  // False if this machine lacks the device; tests then skip.
  virtual bool Available() const = 0;

  // Prepares the weights and computes a batch, all in host memory; returns when `out` is complete.
  // A backend with its own memory copies in and out, keeps each tensor's alignment modulo 256 and
  // its aliasing of y and out, and writes back only out. Tests call it many times in a row with the
  // same spec and parameters.
  virtual Status LinearNorm(const LinearNormSpec& spec, const LinearNormParams& params,
                            const LinearNormSegment* segments, std::size_t count) = 0;
};

std::unique_ptr<LinearNormBackend> MakeLinearNormBackend();

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_LINEAR_NORM_BACKEND_H_
