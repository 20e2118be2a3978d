// A call of a normalization operator: from tensors to the kernels' C ABI.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_RUN_H_
#define NORMD_CLIENT_PYTHON_NATIVE_RUN_H_

#include "client/python/native/call.h"

namespace normd::torch_ops {

// Checks the call, copies tensors whose layout no kernel reads, computes, and leaves the results in
// the call. On CUDA it enqueues on PyTorch's current stream and returns. Throws std::runtime_error
// with the operator, the argument, what came and what was wanted.
void Run(Call& call);

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_RUN_H_
