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

Pitched::Pitched(const Tensor& tensor) : block_dim(tensor.dims()) {
  const auto is_one = [&](std::int64_t dim) { return tensor.size(dim) == 1; };
  std::int64_t elements = 1;
  while (block_dim > 0 && (is_one(block_dim - 1) || tensor.strides()[block_dim - 1] == elements)) {
    elements *= tensor.size(--block_dim);
  }
  std::int64_t wanted = 0;
  for (std::int64_t dim = block_dim - 1; dim >= 0; --dim) {
    if (is_one(dim)) continue;
    const std::int64_t stride = tensor.strides()[dim];
    if (pitch == 0) pitch = wanted = stride;
    if (stride != wanted || stride < elements) {
      pitch = 0;
      return;
    }
    wanted *= tensor.size(dim);
  }
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
