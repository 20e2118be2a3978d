// The part of PyTorch's C ABI that the operators need, looked up in the loaded PyTorch's libraries.
//
// PyTorch keeps these functions stable for extensions (its "LibTorch stable ABI", from 2.10 on).
// Because they are looked up, the operators are compiled without PyTorch's headers, and one build
// serves every version from 2.10 on. The C ABI has nothing for autograd: four functions of the C++
// library, by their mangled names, stand in for it, and objects of its classes pass through as
// opaque pointers.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_TORCH_ABI_H_
#define NORMD_CLIENT_PYTHON_NATIVE_TORCH_ABI_H_

#include <cstdint>
#include <string>

namespace normd::torch_ops {

// An argument or result of a boxed operator: the bits of an int64, a double or a bool; a
// TensorHandle that its receiver owns; or, for an optional, a StableIValue* from `new`, with 0 for
// absent.
using StableIValue = std::uint64_t;

struct TensorOpaque;
using TensorHandle = TensorOpaque*;
struct LibraryOpaque;
struct CudaGuardOpaque;
struct TensorImplOpaque;

// The memory of a torch::CppFunction, with a destructor, so that it is returned like one. Nothing
// is left to destroy once library_impl_cpp has taken it.
struct CppFunction {
  ~CppFunction() {}
  alignas(16) unsigned char bytes[1024];
};

using BoxedKernel = void(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

// These sources follow this version's conventions for StableIValue: 2.10.
inline constexpr std::uint64_t kAbiVersion = (std::uint64_t{2} << 56) | (std::uint64_t{10} << 48);

// Each int32_t result that is not a value is 0 on success.
struct TorchAbi {
  std::int32_t (*get_data_ptr)(TensorHandle, void**);
  std::int32_t (*get_dim)(TensorHandle, std::int64_t*);
  std::int32_t (*get_sizes)(TensorHandle, std::int64_t**);
  std::int32_t (*get_strides)(TensorHandle, std::int64_t**);
  std::int32_t (*get_dtype)(TensorHandle, std::int32_t*);
  std::int32_t (*get_device_type)(TensorHandle, std::int32_t*);
  std::int32_t (*get_device_index)(TensorHandle, std::int32_t*);
  std::int32_t (*delete_tensor)(TensorHandle);
  std::int32_t (*empty_strided)(std::int64_t dims, const std::int64_t* sizes,
                                const std::int64_t* strides, std::int32_t dtype,
                                std::int32_t device_type, std::int32_t device_index, TensorHandle*);
  std::int32_t (*copy)(TensorHandle to, TensorHandle from, std::int32_t non_blocking);
  std::int32_t (*get_num_threads)(std::uint32_t*);
  bool (*grad_mode_is_enabled)();
  std::int32_t (*library_init_impl)(const char* name_space, const char* key, const char* file,
                                    std::uint32_t line, LibraryOpaque**);
  std::int32_t (*library_impl)(LibraryOpaque*, const char* name, BoxedKernel*,
                               std::uint64_t version);
  std::int32_t (*device_type_cpu)();
  std::int32_t (*device_type_cuda)();
  std::int32_t (*dtype_float32)();
  std::int32_t (*dtype_float64)();
  std::int32_t (*dtype_float16)();
  std::int32_t (*dtype_bfloat16)();
  std::int32_t (*dtype_int8)();
  std::int32_t (*dtype_uint8)();
  std::int32_t (*dtype_int64)();
  std::int32_t (*dtype_float8_e4m3fn)();

  // Null if PyTorch has no CUDA.
  std::int32_t (*current_device_index)(std::int32_t*);
  std::int32_t (*current_cuda_stream)(std::int32_t device, void**);
  std::int32_t (*create_cuda_guard)(std::int32_t device, CudaGuardOpaque**);
  std::int32_t (*delete_cuda_guard)(CudaGuardOpaque*);
  // The driver's; null without it.
  int (*stream_is_capturing)(void* stream, int* status);
  // The reason why the last call failed; null before PyTorch 2.13.
  const char* (*exception_what)();

  // C++: c10::TensorImpl::requires_grad, torch::autograd::impl::bump_version,
  // torch::autograd::autogradNotImplementedFallback and torch::Library::_impl, which throw.
  bool (*requires_grad)(const TensorImplOpaque*);
  void (*bump_version)(TensorHandle);
  CppFunction (*not_implemented_kernel)();
  void* (*library_impl_cpp)(LibraryOpaque*, const char* name, CppFunction*, int verify);
};

// Looks the functions up. Returns "" or the missing ones. Call once, before everything else.
std::string LoadTorchAbi();

namespace internal {
extern TorchAbi torch_abi;
[[noreturn]] void FailTorch(const char* what);
}  // namespace internal

// After LoadTorchAbi.
inline const TorchAbi& Torch() { return internal::torch_abi; }

// Throws std::runtime_error, which becomes a RuntimeError in Python, unless `result` is 0.
inline void CheckTorch(std::int32_t result, const char* what) {
  if (result != 0) internal::FailTorch(what);
}

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_TORCH_ABI_H_
