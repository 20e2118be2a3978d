// The order of a tensor's elements in memory.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_ORDER_H_
#define NORMD_CLIENT_PYTHON_NATIVE_ORDER_H_

#include <cstdint>
#include <vector>

#include "client/python/native/tensor.h"

namespace normd::torch_ops {

inline constexpr std::int64_t kMaxDims = 64;
// Results with one element per row or block have groups and blocks beside x's dimensions.
inline constexpr std::int64_t kMaxResultDims = kMaxDims + 2;

// Dense, and either row-major or with some adjacent dimensions moved behind all others (PyTorch's
// channels_last: dimension 1).
struct Order {
  std::int64_t first_last = 0;  // These are innermost; with last == 0 the order is row-major.
  std::int64_t last = 0;

  // The strides of a tensor of these sizes; `strides` has room for them.
  void Strides(const std::int64_t* sizes, std::int64_t dims, std::int64_t* strides) const;
  // Whether the tensor, of at most kMaxResultDims dimensions, is in this order. Strides of
  // dimensions of one element do not count.
  bool Has(const Tensor& tensor) const;
};

// How a tensor lies that is row-major but for one distance: blocks of its last dimensions lie
// together, `pitch` elements from one to the next.
struct Pitched {
  std::int64_t block_dim = 0;  // The first dimension of a block.
  std::int64_t pitch = 0;      // 0: the tensor does not lie so, or it is row-major.

  explicit Pitched(const Tensor& tensor);
};

// Replaces a tensor of at most kMaxResultDims dimensions in another order by a copy in this one. An
// empty one stays.
void PutInOrder(Tensor& tensor, const Order& order);

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_ORDER_H_
