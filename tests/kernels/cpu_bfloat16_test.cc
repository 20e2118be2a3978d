// The loops with instructions for bfloat16 against those without, which every machine can run.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/stage_loops.h"

namespace normd::norm::cpu {
namespace {

using Bits = std::vector<std::uint16_t>;

float ToFloat(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
std::uint16_t Truncated(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

Bits EveryValue() {
  Bits all(1 << 16);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  return all;
}

class CpuBFloat16Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (&native_ == &portable_) GTEST_SKIP() << "no instructions for bfloat16 on this machine";
  }

  // Both at once: `use(kernels, y)` fills y.
  template <class Use>
  void ExpectSameBits(std::size_t count, const Use& use) {
    Bits expected(count, 0x1234);
    Bits actual(count, 0x4321);
    use(portable_, expected.data());
    use(native_, actual.data());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(actual[i], expected[i]) << "element " << i << " of " << count;
    }
  }

  const SimdKernels& native_ = KernelsFor(DType::kBFloat16);
  const SimdKernels& portable_ = PortableKernelsFor(DType::kBFloat16);
  std::mt19937 random_{20261124};
};

Run MakeRun(const Bits& x, std::uint16_t* y, std::int64_t count) {
  Run run;
  run.x = x.data();
  run.y = y;
  run.count = count;
  return run;
}

// To and from subnormal numbers, ties, infinities and NaN among them.
TEST_F(CpuBFloat16Test, RoundsEveryValueAlikeAtEveryScale) {
  const Bits x = EveryValue();
  for (const double scale : {1.0, -1.0, 1 + 0x1p-8, 1 + 0x1p-9, 1 + 3 * 0x1p-9, 0x1p-1, 0x1p-126,
                             0x1p-133, 3 * 0x1p-133, 0x1p-140, 0x1p+120, 0.7}) {
    for (const double shift : {0.0, 0x1p-127, 0x1p-133, -0x1p-134, 1.0}) {
      SCOPED_TRACE(::testing::Message() << scale << " " << shift);
      ExpectSameBits(x.size(), [&](const SimdKernels& kernels, std::uint16_t* y) {
        const Affine affine{0, scale, shift};
        const auto count = static_cast<std::int64_t>(x.size());
        kernels.apply(MakeRun(x, y, count), {&affine, count, count});
      });
    }
  }
}

TEST_F(CpuBFloat16Test, AddsAnyTwoValuesAlike) {
  const Bits x = EveryValue();
  Bits residual = x;
  for (int turn = 0; turn < 8; ++turn) {
    std::shuffle(residual.begin(), residual.end(), random_);
    ExpectSameBits(x.size(), [&](const SimdKernels& kernels, std::uint16_t* y) {
      InputRun run;
      run.x = x.data();
      run.residual = residual.data();
      run.sum = y;
      run.count = static_cast<std::int64_t>(x.size());
      kernels.sum(run);
    });
  }
}

// What is written of a sum, and what is normalized of it.
TEST_F(CpuBFloat16Test, StagesReadAndWriteAnyTwoValuesAlike) {
  const StageLoops& native = StageLoopsFor(DType::kBFloat16);
  const StageLoops& portable = PortableStageLoopsFor(DType::kBFloat16);
  const Bits x = EveryValue();
  Bits residual = x;
  for (const std::int64_t count : {65536, 1, 15, 17, 33, 70}) {
    SCOPED_TRACE(count);
    std::shuffle(residual.begin(), residual.end(), random_);
    const auto size = static_cast<std::size_t>(count);
    std::vector<float> expected(size), actual(size);
    const auto read = [&](const StageLoops& loops, std::uint16_t* sum, float* v) {
      InputRun run;
      run.x = x.data();
      run.residual = residual.data();
      run.sum = sum;
      run.rounded = true;
      run.count = count;
      loops.read(run, v);
    };
    ExpectSameBits(size, [&](const SimdKernels& kernels, std::uint16_t* sum) {
      const bool is_native = &kernels == &native_;
      read(is_native ? native : portable, sum, is_native ? actual.data() : expected.data());
    });
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
          << i;
    }
    ExpectSameBits(size, [&](const SimdKernels& kernels, std::uint16_t* y) {
      StageRun run;
      run.x = actual.data();
      run.y = y;
      run.count = count;
      run.from_buffer = true;
      run.combine = Combine::kAdd;
      run.other = residual.data();
      (&kernels == &native_ ? native : portable).apply(run, {0, 0x1p-7, 0x1p-130});
    });
  }
}

TEST_F(CpuBFloat16Test, AppliesElementsAlikeAtEveryLength) {
  Bits x = EveryValue();
  std::vector<float> gamma(x.size()), beta(x.size());
  std::uniform_int_distribution<std::uint32_t> any_bits;
  for (std::int64_t count = 1; count < 700; count += count < 140 ? 1 : 13) {
    SCOPED_TRACE(count);
    std::shuffle(x.begin(), x.end(), random_);
    for (std::int64_t i = 0; i < count; ++i) {
      gamma[static_cast<std::size_t>(i)] = std::bit_cast<float>(any_bits(random_));
      beta[static_cast<std::size_t>(i)] =
          i % 3 == 0 ? 0.0F : std::bit_cast<float>(any_bits(random_) & 0x81FF'FFFF);
    }
    for (const bool with_gamma : {true, false}) {
      for (const bool with_beta : {true, false}) {
        ExpectSameBits(static_cast<std::size_t>(count),
                       [&](const SimdKernels& kernels, std::uint16_t* y) {
                         const ElementAffine affine{0.25, 1.5, with_gamma ? gamma.data() : nullptr,
                                                    with_beta ? beta.data() : nullptr};
                         kernels.apply_elements(MakeRun(x, y, count), {}, &affine, 1);
                       });
      }
    }
  }
}

Moments InDouble(const Bits& x, std::int64_t begin, std::int64_t count, bool centered) {
  Moments moments{static_cast<double>(count), 0, 0};
  const auto at = [&](std::int64_t i) {
    return static_cast<double>(ToFloat(x[static_cast<std::size_t>(begin + i)]));
  };
  for (std::int64_t i = 0; centered && i < count; ++i) moments.mean += at(i);
  moments.mean /= moments.count;
  for (std::int64_t i = 0; i < count; ++i) {
    moments.m2 += (at(i) - moments.mean) * (at(i) - moments.mean);
  }
  return moments;
}

struct Data {
  const char* name;
  double center;
  double deviation;
  bool is_summed_around_zero;  // In any long chunk; otherwise chunks are the portable loops'.
};
constexpr Data kData[] = {{"Standard", 0, 1, true},
                          {"OneDeviationAway", 1, 1, true},
                          {"Small", 0, 1e-14, true},
                          {"Large", 1e17, 1e17, true},
                          {"FarAway", 100, 1, false},
                          {"SubnormalSquares", 0, 1e-17, false},
                          {"TinyAndFarAway", 1e-18, 1e-20, false},
                          {"Subnormal", 0, 1e-39, false},
                          {"Huge", 0, 1e25, false}};

std::string DataName(const ::testing::TestParamInfo<Data>& info) { return info.param.name; }

class CpuBFloat16MomentsTest : public CpuBFloat16Test,
                               public ::testing::WithParamInterface<Data> {};

TEST_P(CpuBFloat16MomentsTest, AreThoseOfDoubleOrPortableAtEveryLength) {
  std::normal_distribution<double> normal(GetParam().center, GetParam().deviation);
  Bits x(40000);
  for (auto& bits : x) bits = Truncated(static_cast<float>(normal(random_)));
  std::vector<std::int64_t> counts(600);
  std::iota(counts.begin(), counts.end(), 1);
  counts.insert(counts.end(), {4095, 16383, 16384, 16385, 33000});
  for (const std::int64_t count : counts) {
    for (const bool centered : {true, false}) {
      const std::int64_t begin = count % 7;
      const Moments moments = native_.moments(x.data() + begin, count, centered);
      SCOPED_TRACE(::testing::Message() << count << (centered ? " centered" : ""));
      if (!GetParam().is_summed_around_zero && count >= 100 &&
          (centered || GetParam().center == 0)) {
        const Moments expected = portable_.moments(x.data() + begin, count, centered);
        EXPECT_EQ(moments.mean, expected.mean);
        EXPECT_EQ(moments.m2, expected.m2);
        continue;
      }
      if (!GetParam().is_summed_around_zero) continue;
      const Moments expected = InDouble(x, begin, count, centered);
      const double mean_square = InDouble(x, begin, count, false).m2 / moments.count;
      EXPECT_EQ(moments.count, expected.count);
      EXPECT_NEAR(moments.mean, expected.mean, 4e-7 * std::sqrt(mean_square));
      EXPECT_NEAR(moments.m2, expected.m2,
                  4e-6 * expected.m2 + 1e-13 * moments.count * mean_square);
    }
  }
}

// Each channel of a block whose lines are longer than the block, at every width and height.
TEST_P(CpuBFloat16MomentsTest, OfChannelsAreThoseOfDoubleOrPortableAtEverySize) {
  constexpr std::int64_t kStride = 103;
  std::normal_distribution<double> normal(GetParam().center, GetParam().deviation);
  Bits x(kStride * 700);
  for (auto& bits : x) bits = Truncated(static_cast<float>(normal(random_)));
  const auto moments_of = [&](const SimdKernels& kernels, std::int64_t from, std::int64_t channels,
                              std::int64_t positions, bool centered) {
    std::vector<double> mean(static_cast<std::size_t>(channels), -1.0);
    std::vector<double> m2(mean);
    kernels.channel_moments({x.data() + from, positions, channels, kStride}, centered, mean.data(),
                            m2.data());
    std::vector<Moments> all;
    for (std::size_t c = 0; c < mean.size(); ++c) {
      all.push_back({static_cast<double>(positions), mean[c], m2[c]});
    }
    return all;
  };
  for (const std::int64_t positions : {1, 2, 3, 7, 8, 9, 15, 64, 65, 130, 512, 513, 700}) {
    for (const std::int64_t channels : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 97}) {
      for (const bool centered : {true, false}) {
        SCOPED_TRACE(::testing::Message() << positions << " x " << channels << " " << centered);
        const std::vector<Moments> all = moments_of(native_, 3, channels, positions, centered);
        const std::vector<Moments> portable =
            moments_of(portable_, 3, channels, positions, centered);
        for (std::int64_t c = 0; c < channels; ++c) {
          const Moments& moments = all[static_cast<std::size_t>(c)];
          Bits column;
          for (std::int64_t i = 0; i < positions; ++i) {
            column.push_back(x[static_cast<std::size_t>(3 + c + i * kStride)]);
          }
          if (GetParam().is_summed_around_zero) {
            const Moments expected = InDouble(column, 0, positions, centered);
            const double square = InDouble(column, 0, positions, false).m2 / moments.count;
            EXPECT_NEAR(moments.mean, expected.mean, 4e-7 * std::sqrt(square)) << c;
            EXPECT_NEAR(moments.m2, expected.m2,
                        4e-6 * expected.m2 + 1e-13 * moments.count * square)
                << c;
          } else if (GetParam().center == 0 && positions <= 64) {
            EXPECT_EQ(moments.mean, portable[static_cast<std::size_t>(c)].mean) << c;
            EXPECT_EQ(moments.m2, portable[static_cast<std::size_t>(c)].m2) << c;
          }
        }
        // Wherever a block begins, a channel that needs no pivot has the same bits.
        if (!GetParam().is_summed_around_zero || GetParam().center != 0 || positions < 64) continue;
        const std::int64_t cut = channels / 3;
        const std::vector<Moments> part =
            moments_of(native_, 3 + cut, channels - cut, positions, centered);
        for (std::size_t c = 0; c < part.size(); ++c) {
          EXPECT_EQ(part[c].mean, all[c + static_cast<std::size_t>(cut)].mean) << c;
          EXPECT_EQ(part[c].m2, all[c + static_cast<std::size_t>(cut)].m2) << c;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Data, CpuBFloat16MomentsTest, ::testing::ValuesIn(kData), DataName);

TEST_F(CpuBFloat16Test, MomentsOfSpecialValuesAreThePortableOnes) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float special : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 3e38F, 0.0F}) {
    for (const std::size_t at : {0, 255, 256, 511, 512, 517}) {
      Bits x(518, Truncated(special == 0 ? 0.0F : 1.0F));
      x[at] = Truncated(special);
      for (const bool centered : {true, false}) {
        const Moments expected = portable_.moments(x.data(), 518, centered);
        const Moments actual = native_.moments(x.data(), 518, centered);
        EXPECT_EQ(std::isnan(actual.mean), std::isnan(expected.mean)) << special << " at " << at;
        EXPECT_EQ(std::isnan(actual.m2), std::isnan(expected.m2)) << special << " at " << at;
        if (!std::isnan(expected.m2)) {
          EXPECT_EQ(actual.mean, expected.mean);
          EXPECT_EQ(actual.m2, expected.m2);
        }
      }
    }
  }
}

// The bits of a row do not depend on whether another one is written meanwhile.
TEST_F(CpuBFloat16Test, AlongWithARunTheMomentsAndResultsHaveTheSameBits) {
  std::normal_distribution<float> normal(0, 1);
  Bits x(20000), next(20000);
  for (auto& bits : x) bits = Truncated(normal(random_));
  for (auto& bits : next) bits = Truncated(normal(random_));
  for (const std::int64_t count : {1, 31, 32, 255, 256, 257, 700, 2048, 16383, 16384}) {
    SCOPED_TRACE(count);
    Bits alone(static_cast<std::size_t>(count)), along(static_cast<std::size_t>(count));
    const ElementAffine affine{0.5, 2, nullptr, nullptr};
    native_.apply_elements(MakeRun(x, alone.data(), count), {}, &affine, 1);
    const Moments moments = native_.apply_elements_along(MakeRun(x, along.data(), count), affine,
                                                         {next.data(), count, true});
    const Moments expected = native_.moments(next.data(), count, true);
    EXPECT_EQ(along, alone);
    EXPECT_EQ(moments.mean, expected.mean);
    EXPECT_EQ(moments.m2, expected.m2);
  }
}

}  // namespace
}  // namespace normd::norm::cpu
