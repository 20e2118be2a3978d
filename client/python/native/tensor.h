// PyTorch tensors, and the arguments of a boxed operator.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_TENSOR_H_
#define NORMD_CLIENT_PYTHON_NATIVE_TENSOR_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "client/python/native/torch_abi.h"

namespace normd::torch_ops {

// "[2, 3]"
std::string ShapeText(const std::int64_t* sizes, std::int64_t dims);

// Owns a reference to a tensor; may be empty. Movable. Sizes and strides are the tensor's own.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorHandle handle);
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    data_ = other.data_;
    dims_ = other.dims_;
    sizes_ = other.sizes_;
    strides_ = other.strides_;
    dtype_ = other.dtype_;
    device_type_ = other.device_type_;
    device_index_ = other.device_index_;
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) Torch().delete_tensor(handle_);
  }

  // A new tensor with unwritten elements.
  static Tensor Empty(const std::int64_t* sizes, const std::int64_t* strides, std::int64_t dims,
                      std::int32_t dtype, const Tensor& device_of);

  explicit operator bool() const { return handle_ != nullptr; }
  TensorHandle handle() const { return handle_; }
  // Gives the reference away, as a boxed operator's result.
  StableIValue release() { return reinterpret_cast<StableIValue>(std::exchange(handle_, nullptr)); }

  void* data() const { return data_; }
  std::int64_t dims() const { return dims_; }
  std::int64_t size(std::int64_t i) const { return sizes_[i]; }
  const std::int64_t* sizes() const { return sizes_; }
  const std::int64_t* strides() const { return strides_; }
  std::int32_t dtype() const { return dtype_; }
  std::int32_t device_type() const { return device_type_; }
  std::int32_t device_index() const { return device_index_; }
  // Whether autograd follows it, if gradients are enabled.
  bool requires_grad() const;

  // The product of the sizes of dimensions [begin, end).
  std::int64_t Count(std::int64_t begin, std::int64_t end) const;
  std::int64_t elements() const { return Count(0, dims_); }
  // Elements from the first to after the last in memory.
  std::int64_t extent() const;
  bool SameShape(const Tensor& other) const;
  // The same shape, and strides where they count.
  bool SameStrides(const Tensor& other) const;
  bool SameDevice(const Tensor& other) const {
    return device_type_ == other.device_type_ && device_index_ == other.device_index_;
  }
  std::string shape_text() const { return ShapeText(sizes_, dims_); }

  // Tells autograd that the elements change, as PyTorch's in-place operators do. Throws, as they
  // do, for an inference tensor outside torch.inference_mode().
  void BumpVersion() const { Torch().bump_version(handle_); }

 private:
  TensorHandle handle_ = nullptr;
  void* data_ = nullptr;
  std::int64_t dims_ = 0;
  const std::int64_t* sizes_ = nullptr;
  const std::int64_t* strides_ = nullptr;
  std::int32_t dtype_ = 0;
  std::int32_t device_type_ = 0;
  std::int32_t device_index_ = -1;  // The CPU's value.
};

// Reads a boxed operator's arguments in the order of its schema. Read all of them before anything
// throws: unread tensors are never freed.
class Arguments {
 public:
  explicit Arguments(const StableIValue* stack) : next_(stack) {}

  Tensor NextTensor() { return Tensor(reinterpret_cast<TensorHandle>(*next_++)); }
  Tensor NextOptional();
  std::int64_t NextInt() { return Next<std::int64_t>(); }
  // The number of an enumerator, which `name` stands for. See wrong_name().
  std::uint8_t NextCode(const char* name);
  double NextDouble() { return Next<double>(); }
  bool NextBool() { return Next<bool>(); }

  // The first of NextCode's numbers that no enumerator can have; its name is null if there is none.
  const char* wrong_name() const { return wrong_name_; }
  std::int64_t wrong_code() const { return wrong_code_; }

 private:
  template <typename T>
  T Next() {
    T value;
    std::memcpy(&value, next_++, sizeof(value));
    return value;
  }

  const StableIValue* next_;
  const char* wrong_name_ = nullptr;
  std::int64_t wrong_code_ = 0;
};

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_TENSOR_H_
