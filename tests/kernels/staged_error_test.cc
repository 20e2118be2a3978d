// norm_bench's check of what stages compute: it must see every kind of breach.

#include "kernels/bench/staged_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference.h"

namespace normd::norm::bench {
namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kChannels = 40;

class StagedErrorTest : public ::testing::Test {
 protected:
  // Fills y, residual_out and the scales with what the reference makes of x.
  explicit StagedErrorTest(Quantization quantization = Quantization::kNone) {
    spec_ = RmsNormSpec(kChannels, DType::kFloat32);
    spec_.residual = spec_.residual_out = true;
    spec_.quantization = quantization;
    if (quantization != Quantization::kNone) spec_.quantization_scale = QuantizationScale::kRow;
    for (std::int64_t i = 0; i < kRows * kChannels; ++i) {
      x_.push_back(std::sin(static_cast<float>(i)));
      residual_.push_back(std::cos(static_cast<float>(3 * i)));
      sum_.push_back(x_.back() + residual_.back());
    }
    segment_.x = x_.data();
    segment_.residual = residual_.data();
    segment_.residual_out = sum_.data();
    segment_.samples = kRows;
    std::vector<double> y(sum_.size());
    EXPECT_TRUE(NormalizeReference(spec_, NormParams(), segment_, y.data()).ok());
    y_.resize(y.size() * 4);
    segment_.y = y_.data();
    if (quantization == Quantization::kNone) {
      for (std::size_t i = 0; i < y.size(); ++i) Set(i, y[i]);
      return;
    }
    for (const double scale : ReferenceScales(spec_, segment_, y.data())) {
      scales_.push_back(static_cast<float>(scale));
    }
    segment_.scale_out = scales_.data();
    for (std::size_t i = 0; i < y.size(); ++i) Set(i, y[i] / scales_[i / kChannels]);
  }

  void Set(std::size_t i, double value) {
    const auto index = static_cast<std::int64_t>(i);
    if (spec_.quantization == Quantization::kNone) {
      StoreElement(spec_.dtype, y_.data(), index, value);
    } else {
      StoreQuantized(spec_.quantization, y_.data(), index, value);
    }
  }
  double Error() const { return StagedMaxError(spec_, NormParams(), segment_); }

  NormSpec spec_;
  Segment segment_;
  std::vector<float> x_, residual_, sum_, scales_;
  std::vector<char> y_;
};

class QuantizedErrorTest : public StagedErrorTest {
 protected:
  QuantizedErrorTest() : StagedErrorTest(Quantization::kInt8) {}
};

TEST_F(StagedErrorTest, IsARoundingOfTheReferenceItself) { EXPECT_LT(Error(), 1e-7); }

TEST_F(StagedErrorTest, SeesOneWrongElement) {
  Set(kRows * kChannels - 1, 7);
  EXPECT_GT(Error(), 1);
}

TEST_F(StagedErrorTest, IsInfiniteForAnElementThatWasNotWritten) {
  Set(5, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Error(), std::numeric_limits<double>::infinity());
}

TEST_F(StagedErrorTest, SeesAWrongSum) {
  sum_[kChannels] += 0.5f;
  EXPECT_GT(Error(), 0.1);
}

TEST_F(QuantizedErrorTest, IsNothingForTheReferenceRounded) { EXPECT_LT(Error(), 1e-6); }

TEST_F(QuantizedErrorTest, SeesANeighbouringStep) {
  const double step = LoadQuantized(spec_.quantization, y_.data(), 9);
  Set(9, step > 0 ? step - 1 : step + 1);
  EXPECT_GT(Error(), 1e-5);
}

TEST_F(QuantizedErrorTest, SeesAWrongScale) {
  scales_[1] *= 1.01f;
  EXPECT_GT(Error(), 0.009);
}

}  // namespace
}  // namespace normd::norm::bench
