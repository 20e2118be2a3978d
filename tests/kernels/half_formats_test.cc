// Every backend's conversions from and to the 16-bit types, over all their values.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

class KernelHalfFormatsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
    for (std::int64_t i = 0; i < x_.count(); ++i) {
      const std::uint16_t bits = static_cast<std::uint16_t>(i);
      std::memcpy(static_cast<char*>(x_.data()) + 2 * i, &bits, 2);
    }
  }

  std::uint16_t Bits(const Tensor& tensor, std::int64_t i) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(tensor.data()) + 2 * i, 2);
    return bits;
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
  Tensor x_{GetParam(), 65536};
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
