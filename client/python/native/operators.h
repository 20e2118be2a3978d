// The operators for PyTorch.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_OPERATORS_H_
#define NORMD_CLIENT_PYTHON_NATIVE_OPERATORS_H_

#include <cstdint>
#include <vector>

#include "client/python/native/torch_abi.h"

namespace normd::torch_ops {

// One kernel computes an operator and its out variant, on the CPU and on CUDA. The number of
// results and the tensors tell it which of them was called.
struct Operator {
  const char* name;
  BoxedKernel* kernel;
};

const std::vector<Operator>& NormOperators();
const std::vector<Operator>& LinearOperators();

// Frees a layer that linear_norm_prepare has made for the CPU. Its calls in flight end first.
void ForgetLinear(std::int64_t number);

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_OPERATORS_H_
