#include "client/python/native/order.h"

#include <algorithm>
#include <utility>

namespace normd::torch_ops {

void Order::Strides(const std::int64_t* sizes, std::int64_t dims, std::int64_t* strides) const {
  std::int64_t stride = 1;
  const auto place = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = end - 1; i >= begin; --i) {
      strides[i] = stride;
      stride *= std::max<std::int64_t>(sizes[i], 1);
    }
  };
  place(first_last, first_last + last);
  place(first_last + last, dims);
  place(0, first_last);
}

bool Order::Has(const Tensor& tensor) const {
  std::int64_t wanted[kMaxResultDims];
  Strides(tensor.sizes(), tensor.dims(), wanted);
  bool empty = false;
  bool same = true;
  for (std::int64_t i = 0; i < tensor.dims(); ++i) {
    empty |= tensor.size(i) == 0;
    same &= tensor.size(i) == 1 || tensor.strides()[i] == wanted[i];
  }
  return same || empty;
}

void PutInOrder(Tensor& tensor, const Order& order) {
  if (!tensor || order.Has(tensor)) return;
  std::int64_t strides[kMaxResultDims];
  order.Strides(tensor.sizes(), tensor.dims(), strides);
  Tensor dense = Tensor::Empty(tensor.sizes(), strides, tensor.dims(), tensor.dtype(), tensor);
  CheckTorch(Torch().copy(dense.handle(), tensor.handle(), 0), "copy_");
  tensor = std::move(dense);
}

}  // namespace normd::torch_ops
