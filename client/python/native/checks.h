// The checks of every operator's tensors, and the form of its errors.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_CHECKS_H_
#define NORMD_CLIENT_PYTHON_NATIVE_CHECKS_H_

#include <span>
#include <string>

#include "client/python/native/tensor.h"

namespace normd::torch_ops {

// A tensor of a call, which may be empty, and its name in the operator's schema.
struct NamedTensor {
  const char* name;
  const Tensor* tensor;
};

// Throws std::runtime_error("normd::NAME: ARGUMENT: CAME, wanted WANTED").
[[noreturn]] void Refuse(const char* name, const std::string& argument, const std::string& came,
                         const std::string& wanted);

// Refuses a number that Arguments::NextCode found wrong. Call it once all arguments are read.
void CheckCodes(const char* name, const Arguments& arguments);

// Refuses tensors on another device than the first one's. If gradients are enabled, refuses tensors
// that require one.
void CheckTensors(const char* name, std::span<const NamedTensor> tensors);

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_CHECKS_H_
