// What normd.torch calls, through ctypes, once the operators' schemas are defined.

#include <initializer_list>
#include <string>

#include "client/python/native/operators.h"
#include "client/python/native/torch_abi.h"

namespace {

using normd::torch_ops::LinearOperators;
using normd::torch_ops::NormOperators;
using normd::torch_ops::Operator;
using normd::torch_ops::Torch;

// Gives PyTorch the kernels of all operators for one dispatch key.
std::string RegisterFor(const char* key) {
  // Never deleted: that would take the kernels away.
  normd::torch_ops::LibraryOpaque* library = nullptr;
  if (Torch().library_init_impl("normd", key, __FILE__, __LINE__, &library) != 0) {
    return std::string("PyTorch refuses the library normd for ") + key;
  }
  for (const std::vector<Operator>* operators : {&NormOperators(), &LinearOperators()}) {
    for (const Operator& each : *operators) {
      for (const char* overload : {"", ".out"}) {
        const std::string name = std::string(each.name) + overload;
        if (name == "linear_norm_prepare.out") continue;
        if (Torch().library_impl(library, name.c_str(), each.kernel,
                                 normd::torch_ops::kAbiVersion) != 0) {
          return "PyTorch refuses a kernel for normd::" + name;
        }
      }
    }
  }
  return "";
}

}  // namespace

// Null, or why it failed. Not thread-safe: call once.
extern "C" __attribute__((visibility("default"))) const char* normd_torch_register() {
  static std::string error;
  error = normd::torch_ops::LoadTorchAbi();
  for (const char* key : {"CPU", "CUDA"}) {
    if (error.empty()) error = RegisterFor(key);
  }
  return error.empty() ? nullptr : error.c_str();
}

// Frees a layer of linear_norm_prepare, whose number its tensor has.
extern "C" __attribute__((visibility("default"))) void normd_torch_forget_linear(
    std::int64_t number) {
  normd::torch_ops::ForgetLinear(number);
}
