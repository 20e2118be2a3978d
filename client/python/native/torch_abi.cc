#include "client/python/native/torch_abi.h"

#include <dlfcn.h>

#include <stdexcept>

namespace normd::torch_ops {

TorchAbi internal::torch_abi;

namespace {

TorchAbi& abi = internal::torch_abi;

// Looks up symbols in a library that the process has already loaded.
class Loaded {
 public:
  explicit Loaded(const char* name) : handle_(dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {}

  bool found() const { return handle_ != nullptr; }

  template <typename Function>
  bool Find(const char* name, Function** function) const {
    *function = found() ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
    return *function != nullptr;
  }

 private:
  void* const handle_;  // Never closed: the functions are called until the process ends.
};

// The names of all functions that were not found, with a space before each.
std::string FindInTorch(const Loaded& torch) {
  std::string missing;
  const auto find = [&](const char* name, auto** function) {
    if (!torch.Find(name, function)) missing += std::string(" ") + name;
  };
  find("aoti_torch_get_data_ptr", &abi.get_data_ptr);
  find("aoti_torch_get_dim", &abi.get_dim);
  find("aoti_torch_get_sizes", &abi.get_sizes);
  find("aoti_torch_get_strides", &abi.get_strides);
  find("aoti_torch_get_dtype", &abi.get_dtype);
  find("aoti_torch_get_device_type", &abi.get_device_type);
  find("aoti_torch_get_device_index", &abi.get_device_index);
  find("aoti_torch_delete_tensor_object", &abi.delete_tensor);
  find("aoti_torch_empty_strided", &abi.empty_strided);
  find("aoti_torch_copy_", &abi.copy);
  find("torch_get_num_threads", &abi.get_num_threads);
  find("aoti_torch_grad_mode_is_enabled", &abi.grad_mode_is_enabled);
  find("aoti_torch_library_init_impl", &abi.library_init_impl);
  find("torch_library_impl", &abi.library_impl);
  find("aoti_torch_device_type_cpu", &abi.device_type_cpu);
  find("aoti_torch_device_type_cuda", &abi.device_type_cuda);
  find("aoti_torch_dtype_float32", &abi.dtype_float32);
  find("aoti_torch_dtype_float64", &abi.dtype_float64);
  find("aoti_torch_dtype_float16", &abi.dtype_float16);
  find("aoti_torch_dtype_bfloat16", &abi.dtype_bfloat16);
  find("aoti_torch_dtype_int8", &abi.dtype_int8);
  find("aoti_torch_dtype_uint8", &abi.dtype_uint8);
  find("aoti_torch_dtype_int64", &abi.dtype_int64);
  find("aoti_torch_dtype_float8_e4m3fn", &abi.dtype_float8_e4m3fn);
  find("_ZNK3c1010TensorImpl13requires_gradEv", &abi.requires_grad);
  find("_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE", &abi.bump_version);
  find("_ZN5torch8autograd30autogradNotImplementedFallbackEv", &abi.not_implemented_kernel);
  find("_ZNR5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE",
       &abi.library_impl_cpp);
  return missing;
}

}  // namespace

std::string LoadTorchAbi() {
  const Loaded torch("libtorch_cpu.so");
  if (!torch.found()) return "libtorch_cpu.so is not loaded: import torch first";
  if (const std::string missing = FindInTorch(torch); !missing.empty()) {
    return "this PyTorch has no" + missing + "; normd.torch needs PyTorch 2.10 or newer";
  }
  torch.Find("aoti_torch_get_current_device_index", &abi.current_device_index);
  torch.Find("torch_exception_get_what_without_backtrace", &abi.exception_what);
  const Loaded cuda("libtorch_cuda.so");
  cuda.Find("aoti_torch_get_current_cuda_stream", &abi.current_cuda_stream);
  cuda.Find("aoti_torch_create_cuda_guard", &abi.create_cuda_guard);
  cuda.Find("aoti_torch_delete_cuda_guard", &abi.delete_cuda_guard);
  // Not loaded here: the first use of CUDA loads the driver, if there is one.
  if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY); driver != nullptr) {
    abi.stream_is_capturing =
        reinterpret_cast<int (*)(void*, int*)>(dlsym(driver, "cuStreamIsCapturing"));
  }
  return "";
}

void internal::FailTorch(const char* what) {
  const char* why = abi.exception_what == nullptr ? nullptr : abi.exception_what();
  throw std::runtime_error(std::string("normd: ") + what + ": " +
                           (why == nullptr ? "PyTorch refused it" : why));
}

}  // namespace normd::torch_ops
