// One tensor of more than 2^31 elements, in place: counts and offsets beyond 32 bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/normalize.h"
#include "kernels/reference.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

constexpr std::int64_t kPattern = 3 << 15;
constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 4;  // A multiple of 3.

class CpuLargeTest : public ::testing::Test {
 protected:
  CpuLargeTest()
      : data_(std::make_unique_for_overwrite<std::uint16_t[]>(
            static_cast<std::size_t>(kCount + kPattern))) {
    pattern_.Fill(Data::kUniform, TestSeed() + 40);
    for (std::int64_t i = 0; i < kCount; i += kPattern) {
      std::memcpy(data_.get() + i, pattern_.data(), pattern_.bytes());
    }
    std::fill_n(data_.get() + kCount, kPattern, std::uint16_t{0xA5A5});
  }

  // Normalizes the whole, and expects what the reference makes of one pattern: the incomplete last
  // one moves the statistics by less than a rounding.
  void Check(const NormSpec& spec, std::int64_t spatial) {
    const Segment pattern{pattern_.data(), nullptr, 1, kPattern / spec.channels};
    std::vector<double> expected(static_cast<std::size_t>(kPattern));
    ASSERT_TRUE(NormalizeReference(spec, {}, pattern, expected.data()).ok());
    const Segment whole{data_.get(), data_.get(), 1, spatial};
    ASSERT_TRUE(executor_.Normalize(spec, {}, &whole, 1).ok());
    for (const std::int64_t block : {std::int64_t{0}, (kCount / 2) / kPattern,
                                     (kCount - 1) / kPattern - 1, (kCount - 1) / kPattern}) {
      SCOPED_TRACE(block);
      const std::int64_t begin = block * kPattern;
      const std::int64_t count = std::min(kPattern, kCount - begin);
      Tensor part(DType::kBFloat16, count);
      std::memcpy(part.data(), data_.get() + begin, part.bytes());
      const std::vector<double> wanted(expected.begin(), expected.begin() + count);
      EXPECT_EQ(Compare(part, wanted, {2e-3, 0, 1}), "");
    }
    EXPECT_TRUE(std::all_of(data_.get() + kCount, data_.get() + kCount + kPattern,
                            [](std::uint16_t bits) { return bits == 0xA5A5; }));
  }

  const cpu::Executor executor_;
  Tensor pattern_{DType::kBFloat16, kPattern};
  std::unique_ptr<std::uint16_t[]> data_;
};

TEST_F(CpuLargeTest, NormalizesOneRowBeyondTwoToThe31) {
  Check(InstanceNormSpec(1, DType::kBFloat16), kCount);
}

TEST_F(CpuLargeTest, NormalizesChannelsLastBeyondTwoToThe31) {
  NormSpec spec = InstanceNormSpec(3, DType::kBFloat16);
  spec.layout = Layout::kChannelsLast;
  Check(spec, kCount / 3);
}

}  // namespace
}  // namespace normd::norm::testing
