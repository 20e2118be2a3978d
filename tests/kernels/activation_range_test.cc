// Every backend's activations over every value of the 16-bit types, far tails included.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

// The activation in long double, in forms that cancel nothing: beyond the reference, whose
// 1 + tanh(z) and 1 + erf(z) lose the tails.
double Exactly(Activation activation, double leaky_slope, double value) {
  const long double v = value;
  const auto sigmoid = [](long double u) { return 1 / (1 + std::exp(-u)); };
  switch (activation) {
    case Activation::kNone: break;
    case Activation::kRelu: return value < 0 ? 0 : value;
    case Activation::kLeakyRelu: return value < 0 ? leaky_slope * value : value;
    case Activation::kSilu: return static_cast<double>(v * sigmoid(v));
    case Activation::kGeluErf:
      return static_cast<double>(v * 0.5L * std::erfc(-v * std::sqrt(0.5L)));
    case Activation::kGeluTanh: {
      const long double pi = 3.141592653589793238462643383279502884L;
      const long double inner = std::sqrt(2 / pi) * (v + 0.044715L * v * v * v);
      return static_cast<double>(v * sigmoid(2 * inner));
    }
  }
  return value;
}

// Consecutive 16-bit floats are consecutive numbers, with both zeros at 0.
int Ordered(std::uint16_t bits) {
  const int magnitude = bits & 0x7FFF;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t Bits(const Tensor& tensor, std::int64_t i) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(tensor.data()) + 2 * i, 2);
  return bits;
}

// Every value of a 16-bit type, by its bits.
Tensor EveryValue(DType dtype) {
  Tensor values(dtype, 65536);
  for (std::int64_t i = 0; i < values.count(); ++i) {
    const std::uint16_t bits = static_cast<std::uint16_t>(i);
    std::memcpy(static_cast<char*>(values.data()) + 2 * i, &bits, 2);
  }
  return values;
}

// Expects element i of y to be within one unit in the last place of the activation of values[i],
// where that is finite: edge_values_test.cc has the others.
void ExpectWithinOneUnit(const Tensor& y, Activation activation,
                         const std::vector<double>& values) {
  int beyond = 0;
  int worst = 0;
  double worst_at = 0;
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const double v = values[static_cast<std::size_t>(i)];
    if (!std::isfinite(v)) continue;
    std::uint16_t want = 0;
    StoreElement(y.dtype(), &want, 0, Exactly(activation, NormSpec().leaky_slope, v));
    ASSERT_FALSE(std::isnan(y.Get(i))) << v;
    const int distance = std::abs(Ordered(Bits(y, i)) - Ordered(want));
    if (distance > 1) ++beyond;
    if (distance > worst) {
      worst = distance;
      worst_at = v;
    }
  }
  EXPECT_EQ(beyond, 0) << "activation " << static_cast<int>(activation) << ": up to " << worst
                       << " units in the last place, at " << worst_at;
}

constexpr Activation kActivations[] = {Activation::kNone,      Activation::kRelu,
                                       Activation::kLeakyRelu, Activation::kSilu,
                                       Activation::kGeluErf,   Activation::kGeluTanh};

// Given statistics make the value before the activation x itself, in three kinds of kernels:
// channels first, channels last, and one run.
enum class Kernel { kFirst, kColumns, kOneChannel };

class KernelActivationRangeTest : public ::testing::TestWithParam<std::tuple<DType, Kernel>> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  DType dtype() const { return std::get<0>(GetParam()); }

  Tensor Activated(Activation activation) {
    const Kernel kernel = std::get<1>(GetParam());
    const std::int64_t channels = kernel == Kernel::kOneChannel ? 1 : 256;
    NormSpec spec = BatchNormSpec(channels, dtype());
    spec.eps = 0;
    spec.activation = activation;
    if (kernel == Kernel::kColumns) spec.layout = Layout::kChannelsLast;
    const std::vector<double> zeros(256, 0.0), ones(256, 1.0);
    NormParams params;
    params.mean = {zeros.data(), DType::kFloat64};
    params.variance = {ones.data(), DType::kFloat64};
    Tensor y(dtype(), x_.count());
    const Segment segment{x_.data(), y.data(), 1, x_.count() / channels};
    const Status status = backend_->Normalize(spec, params, &segment, 1);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
  const Tensor x_ = EveryValue(dtype());
};

TEST_P(KernelActivationRangeTest, IsWithinOneUnitInTheLastPlaceForEveryValue) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < x_.count(); ++i) values.push_back(x_.Get(i));
  for (const Activation activation : kActivations) {
    ExpectWithinOneUnit(Activated(activation), activation, values);
  }
}

std::string RangeName(const ::testing::TestParamInfo<std::tuple<DType, Kernel>>& info) {
  static constexpr const char* kKernels[] = {"first", "columns", "one_channel"};
  return std::string(Name(std::get<0>(info.param))) + "_" +
         kKernels[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(All, KernelActivationRangeTest,
                         ::testing::Combine(::testing::Values(DType::kFloat16, DType::kBFloat16),
                                            ::testing::Values(Kernel::kFirst, Kernel::kColumns,
                                                              Kernel::kOneChannel)),
                         RangeName);

// A row of 2 MiB with a mean square of its own, which a GPU spreads over several blocks. Each
// channel has every value of the type up to kLargest, one gamma makes them the values before the
// activation, the others what lies between these.
class KernelActivationRowTest : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr std::int64_t kChannels = 16, kSpatial = 65536;
  static constexpr double kLargest = 128;

  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
    spec_.statistics = Statistics::kMeanSquare;
    double squares = 0;
    for (std::int64_t i = 0; i < kSpatial; ++i) {
      // Not NaN either.
      if (!(std::abs(channel_.Get(i)) <= kLargest)) channel_.Set(i, 0);
      squares += channel_.Get(i) * channel_.Get(i);
    }
    const double root = std::sqrt(squares / kSpatial + spec_.eps);
    for (std::int64_t c = 0; c < kChannels; ++c) {
      const double factor = c == 0 ? 1 : 0.5 + static_cast<double>(c) / 32 + 1.0 / 12345;
      gamma_.push_back(factor * root);
      for (std::int64_t i = 0; i < kSpatial; ++i) values_.push_back(factor * channel_.Get(i));
    }
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
  NormSpec spec_ = GroupNormSpec(kChannels, 1, GetParam());
  Tensor channel_ = EveryValue(GetParam());
  std::vector<double> gamma_, values_;
};

// Other code computes rows at odd addresses.
TEST_P(KernelActivationRowTest, IsWithinOneUnitInTheLastPlaceAtEveryAddress) {
  NormParams params;
  params.gamma = {gamma_.data(), DType::kFloat64};
  for (const std::int64_t offset : {0, 1}) {
    SCOPED_TRACE(offset);
    Tensor x(GetParam(), kChannels * kSpatial, offset);
    for (std::int64_t c = 0; c < kChannels; ++c) {
      std::memcpy(static_cast<char*>(x.data()) + c * 2 * kSpatial, channel_.data(), 2 * kSpatial);
    }
    for (const Activation activation : kActivations) {
      spec_.activation = activation;
      Tensor y(GetParam(), x.count(), offset);
      y.Poison();
      const Segment segment{x.data(), y.data(), 1, kSpatial};
      const Status status = backend_->Normalize(spec_, params, &segment, 1);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectWithinOneUnit(y, activation, values_);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelActivationRowTest,
                         ::testing::Values(DType::kFloat16, DType::kBFloat16),
                         [](const auto& type) { return std::string(Name(type.param)); });

// Every backend's conversions from and to the 16-bit types, over all their values.

class KernelHalfFormatsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  // y = x * scale + shift in Acc, through given statistics: mean 0, variance 1, eps 0.
  Tensor Scale(double scale, double shift) {
    NormSpec spec = BatchNormSpec(1, GetParam());
    spec.eps = 0;
    const double values[] = {scale, shift, 0, 1};
    NormParams params;
    params.gamma = {&values[0], DType::kFloat64};
    params.beta = {&values[1], DType::kFloat64};
    params.mean = {&values[2], DType::kFloat64};
    params.variance = {&values[3], DType::kFloat64};
    Tensor y(GetParam(), x_.count());
    const Segment segment{x_.data(), y.data(), 1, x_.count()};
    EXPECT_TRUE(backend_->Normalize(spec, params, &segment, 1).ok());
    return y;
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
  const Tensor x_ = EveryValue(GetParam());
};

TEST_P(KernelHalfFormatsTest, EveryValueComesBackFromTheIdentity) {
  const Tensor y = Scale(1, 0);
  for (std::int64_t i = 0; i < x_.count(); ++i) {
    if (std::isnan(x_.Get(i))) {
      ASSERT_TRUE(std::isnan(y.Get(i))) << i;
    } else if (x_.Get(i) == 0) {
      ASSERT_EQ(y.Get(i), 0) << i;
    } else {
      ASSERT_EQ(Bits(y, i), Bits(x_, i)) << i;
    }
  }
}

TEST_P(KernelHalfFormatsTest, RoundsToNearestEven) {
  // Powers of two and a little: products that are exact in float and fall on ties, next to ties,
  // into the subnormals and beyond the largest number.
  for (const double scale : {0.5, 1.5, 1.25, 1.0 / 1024, 3.0 / 64, 1.0 / 65536, 5.0 / 65536, 2.0}) {
    const Tensor y = Scale(scale, 0);
    for (std::int64_t i = 0; i < x_.count(); ++i) {
      const double exact = x_.Get(i) * scale;
      // Exact in float, and so rounded once: the bits are certain.
      if (std::isnan(exact) || static_cast<double>(static_cast<float>(exact)) != exact) continue;
      std::uint16_t expected = 0;
      StoreElement(GetParam(), &expected, 0, exact);
      if (exact == 0) {
        ASSERT_EQ(y.Get(i), 0) << i;
      } else {
        ASSERT_EQ(Bits(y, i), expected) << "element " << i << " scale " << scale;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelHalfFormatsTest,
                         ::testing::Values(DType::kFloat16, DType::kBFloat16),
                         [](const auto& test) { return Name(test.param); });

}  // namespace
}  // namespace normd::norm::testing
