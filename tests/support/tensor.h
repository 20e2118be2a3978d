// Tensors from seeds, in memory that notices stray writes, and their comparison.

#ifndef NORMD_TESTS_SUPPORT_TENSOR_H_
#define NORMD_TESTS_SUPPORT_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/norm.h"

namespace normd::norm::testing {

// The seed of this run: NORMD_TEST_SEED from the environment, or a fixed number. The first call
// prints it.
std::uint64_t TestSeed();

inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                        DType::kBFloat16};

// What lies beside tensors, which begin at such addresses or by an offset behind them.
inline constexpr unsigned char kGuard = 0xA5;
inline constexpr std::size_t kBoundary = 256;

enum class Data {
  kUniform,       // U[0, 1)
  kNormal,        // N(0, 1)
  kLargeMean,     // N(1e4, 1)
  kConstant,      // 3.25 everywhere
  kOutlier,       // N(0, 1) with one 1e6 (6e4 in float16) near the front
  kHalfOverflow,  // 300 N(0, 1): squares of many exceed float16's largest number
};

// `count` elements of `dtype` between guard bytes, `offset` elements past a 256-byte boundary.
class Tensor {
 public:
  Tensor(DType dtype, std::int64_t count, std::int64_t offset = 0);
  // data_ points into storage_, which a move keeps.
  Tensor(Tensor&&) = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  DType dtype() const { return dtype_; }
  std::int64_t count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * SizeOf(dtype_); }
  void* data() { return data_; }
  const void* data() const { return data_; }

  double Get(std::int64_t index) const;
  void Set(std::int64_t index, double value);

  // The same elements for the same seed and any dtype, except for rounding.
  void Fill(Data data, std::uint64_t seed);
  // Fills each byte with a pattern that is a NaN in every format.
  void Poison();
  void CopyFrom(const Tensor& other);

  bool GuardsIntact() const;
  bool SameBytes(const Tensor& other) const;

 private:
  static constexpr std::size_t kGuardBytes = 256;

  DType dtype_;
  std::int64_t count_;
  std::vector<unsigned char> storage_;
  unsigned char* data_;
};

// gamma, beta, mean and variance of `channels` elements: of order 1, variance positive.
struct ParamSet {
  ParamSet(const NormSpec& spec, DType dtype, std::uint64_t seed, bool affine = true);

  NormParams View() const;

  bool affine;
  bool given;
  Tensor gamma;
  Tensor beta;
  Tensor mean;
  Tensor variance;
};

// The error allowed in results against the float64 reference.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  // For float16 and bfloat16: units in the last place of the rounded reference, beside `absolute`.
  int ulps = 0;
};

// Well within the contract's 1e-4 for float32, for well-behaved data; one unit in the last place
// for the 16-bit types, or float32's rounding error if that is more.
Tolerance TightTolerance(DType dtype);

// Empty if each element of y is within the tolerance of its expectation (a NaN equals a NaN, an
// infinity itself); otherwise a description of the worst element.
std::string Compare(const Tensor& y, const std::vector<double>& expected, Tolerance tolerance);

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_TENSOR_H_
