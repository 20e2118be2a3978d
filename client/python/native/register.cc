// The functions that normd.torch calls, through ctypes, once the operators' schemas are defined.

#include <exception>
#include <initializer_list>
#include <string>
#include <vector>

#include "client/python/native/operators.h"
#include "client/python/native/torch_abi.h"

namespace {

using normd::torch_ops::BoxedKernel;
using normd::torch_ops::CppFunction;
using normd::torch_ops::kAbiVersion;
using normd::torch_ops::LibraryOpaque;
using normd::torch_ops::LinearOperators;
using normd::torch_ops::NormOperators;
using normd::torch_ops::Operator;
using normd::torch_ops::Torch;

// Gives PyTorch one kernel. Under autograd it is the kernel that PyTorch's own operators without a
// derivative have: forward mode raises, and so does backward through a result. CheckTensors refuses
// most calls before that.
std::string RegisterKernel(LibraryOpaque* library, const std::string& key, const std::string& name,
                           BoxedKernel* kernel) {
  if (key != "Autograd") {
    const bool taken = Torch().library_impl(library, name.c_str(), kernel, kAbiVersion) == 0;
    return taken ? "" : "PyTorch refuses a kernel for normd::" + name;
  }
  constexpr int kRegister = 0;
  CppFunction not_implemented = Torch().not_implemented_kernel();
  Torch().library_impl_cpp(library, name.c_str(), &not_implemented, kRegister);
  return "";
}

// Gives PyTorch the kernels of all operators for one dispatch key.
std::string RegisterFor(const std::string& key) {
  // Never deleted: that would unregister the kernels.
  LibraryOpaque* library = nullptr;
  if (Torch().library_init_impl("normd", key.c_str(), __FILE__, __LINE__, &library) != 0) {
    return "PyTorch refuses the library normd for " + key;
  }
  for (const std::vector<Operator>* operators : {&NormOperators(), &LinearOperators()}) {
    for (const Operator& each : *operators) {
      for (const char* overload : {"", ".out"}) {
        const std::string name = std::string(each.name) + overload;
        if (name == "linear_norm_prepare.out") continue;
        const std::string error = RegisterKernel(library, key, name, each.kernel);
        if (!error.empty()) return error;
      }
    }
  }
  return "";
}

}  // namespace

// Returns null, or the reason for the failure. Not thread-safe: call once.
extern "C" __attribute__((visibility("default"))) const char* normd_torch_register() {
  static std::string error;
  try {
    error = normd::torch_ops::LoadTorchAbi();
    for (const char* key : {"CPU", "CUDA", "Autograd"}) {
      if (error.empty()) error = RegisterFor(key);
    }
  } catch (const std::exception& refused) {
    error = refused.what();
  }
  return error.empty() ? nullptr : error.c_str();
}

// Frees a layer of linear_norm_prepare by the number in its tensor.
extern "C" __attribute__((visibility("default"))) void normd_torch_forget_linear(
    std::int64_t number) {
  normd::torch_ops::ForgetLinear(number);
}
