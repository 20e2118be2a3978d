#include "client/python/native/tensor.h"

#include <algorithm>
#include <memory>

namespace normd::torch_ops {

std::string ShapeText(const std::int64_t* sizes, std::int64_t dims) {
  std::string text = "[";
  for (std::int64_t i = 0; i < dims; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(sizes[i]);
  }
  return text + "]";
}

Tensor::Tensor(TensorHandle handle) : handle_(handle) {
  const TorchAbi& torch = Torch();
  std::int64_t* sizes = nullptr;
  std::int64_t* strides = nullptr;
  CheckTorch(torch.get_data_ptr(handle, &data_), "get_data_ptr");
  CheckTorch(torch.get_dim(handle, &dims_), "get_dim");
  CheckTorch(torch.get_sizes(handle, &sizes), "get_sizes");
  CheckTorch(torch.get_strides(handle, &strides), "get_strides");
  CheckTorch(torch.get_dtype(handle, &dtype_), "get_dtype");
  CheckTorch(torch.get_device_type(handle, &device_type_), "get_device_type");
  if (device_type_ != torch.device_type_cpu()) {
    CheckTorch(torch.get_device_index(handle, &device_index_), "get_device_index");
  }
  sizes_ = sizes;
  strides_ = strides;
}

Tensor Tensor::Empty(const std::int64_t* sizes, const std::int64_t* strides, std::int64_t dims,
                     std::int32_t dtype, const Tensor& device_of) {
  TensorHandle handle = nullptr;
  CheckTorch(Torch().empty_strided(dims, sizes, strides, dtype, device_of.device_type_,
                                   device_of.device_index_, &handle),
             "empty_strided");
  return Tensor(handle);
}

std::int64_t Tensor::Count(std::int64_t begin, std::int64_t end) const {
  std::int64_t count = 1;
  for (std::int64_t i = begin; i < end; ++i) count *= sizes_[i];
  return count;
}

bool Tensor::requires_grad() const {
  // A handle points to an at::Tensor, which is a pointer to its c10::TensorImpl.
  return Torch().requires_grad(*reinterpret_cast<const TensorImplOpaque* const*>(handle_));
}

bool Tensor::SameShape(const Tensor& other) const {
  return dims_ == other.dims_ && std::equal(sizes_, sizes_ + dims_, other.sizes_);
}

std::int64_t Tensor::extent() const {
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < dims_; ++i) {
    if (sizes_[i] == 0) return 0;
    last += (sizes_[i] - 1) * strides_[i];
  }
  return last + 1;
}

bool Tensor::SameStrides(const Tensor& other) const {
  if (!SameShape(other)) return false;
  for (std::int64_t i = 0; i < dims_; ++i) {
    if (sizes_[i] > 1 && strides_[i] != other.strides_[i]) return false;
  }
  return true;
}

std::uint8_t Arguments::NextCode(const char* name) {
  const std::int64_t code = NextInt();
  const auto byte = static_cast<std::uint8_t>(code);
  if (byte != code && wrong_name_ == nullptr) {
    wrong_name_ = name;
    wrong_code_ = code;
  }
  return byte;
}

Tensor Arguments::NextOptional() {
  const std::unique_ptr<StableIValue> value(reinterpret_cast<StableIValue*>(*next_++));
  return value ? Tensor(reinterpret_cast<TensorHandle>(*value)) : Tensor();
}

}  // namespace normd::torch_ops
