// Tensors of random elements that are the same everywhere for the same seed.

#ifndef NORMD_CLIENT_TENSOR_RANDOM_H_
#define NORMD_CLIENT_TENSOR_RANDOM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/tensor/tensor.h"

namespace normd::client {

// splitmix64: a full-period generator of 64-bit numbers. A value type.
// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, 1), 53 bits.
  double NextDouble() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// Uniform in [low, high), rounded to the type. Errors as Tensor::Allocate.
absl::StatusOr<Tensor> RandomTensor(norm::DType dtype, Shape shape, double low, double high,
                                    std::uint64_t seed);

// int64, uniform from 0 to values - 1. Likewise.
absl::StatusOr<Tensor> RandomIndexes(Shape shape, std::int64_t values, std::uint64_t seed);

}  // namespace normd::client

#endif  // NORMD_CLIENT_TENSOR_RANDOM_H_
