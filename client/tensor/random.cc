#include "client/tensor/random.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/reference.h"

namespace normd::client {

absl::StatusOr<Tensor> RandomTensor(norm::DType dtype, Shape shape, double low, double high,
                                    std::uint64_t seed) {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype, std::move(shape));
  if (!tensor.ok()) return tensor.status();
  SplitMix64 random(seed);
  const std::int64_t elements = tensor->shape().elements();
  std::byte* data = tensor->mutable_bytes().data();
  for (std::int64_t i = 0; i < elements; ++i) {
    const double value = low + (high - low) * random.NextDouble();
    if (dtype == norm::DType::kFloat32) {
      // The common case for large tensors; StoreElement is written for clarity.
      const auto single = static_cast<float>(value);
      std::memcpy(data + i * static_cast<std::int64_t>(sizeof(single)), &single, sizeof(single));
    } else {
      norm::StoreElement(dtype, data, i, value);
    }
  }
  return tensor;
}

absl::StatusOr<Tensor> RandomIndexes(Shape shape, std::int64_t values, std::uint64_t seed) {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(norm::DType::kInt64, std::move(shape));
  if (!tensor.ok()) return tensor;
  SplitMix64 random(seed);
  for (std::int64_t i = 0; i < tensor->shape().elements(); ++i) {
    const double value = random.NextDouble() * static_cast<double>(values);
    const auto index = std::min(static_cast<std::int64_t>(value), values - 1);
    std::memcpy(tensor->mutable_bytes().data() + i * std::int64_t{sizeof(index)}, &index,
                sizeof(index));
  }
  return tensor;
}

}  // namespace normd::client
