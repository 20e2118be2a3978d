// Runs of channels and positions in turn: where elements lie, what is left of runs of one element,
// what is refused, and the reference against one over a tensor whose dimensions are permuted.

#include "kernels/mixed_runs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/reference.h"

namespace normd::norm {
namespace {

struct Case {
  NormSpec spec;
  Segment segment;
};

Case MixedRunsCase(const RunSizes& channel_runs, const RunSizes& spatial_runs) {
  Case made;
  made.spec = LayerNormSpec(ProductOf(channel_runs), DType::kFloat64);
  made.spec.rows = Rows::kPosition;
  made.spec.layout = Layout::kMixedRuns;
  made.spec.channel_runs = channel_runs;
  made.segment.samples = 1;
  made.segment.spatial = ProductOf(spatial_runs);
  made.segment.spatial_runs = spatial_runs;
  return made;
}

// The places in the order of the tensor's dimensions are 0, 1, 2, ...
TEST(MixedRunsTest, PlacesFollowTheDimensions) {
  const MixedRuns places = {{2, 3, 1, 2}, {4, 1, 5, 3}};
  std::int64_t place = 0;
  for (std::int64_t c0 = 0; c0 < 2; ++c0) {
    for (std::int64_t s0 = 0; s0 < 4; ++s0) {
      for (std::int64_t c1 = 0; c1 < 3; ++c1) {
        for (std::int64_t s2 = 0; s2 < 5; ++s2) {
          for (std::int64_t c3 = 0; c3 < 2; ++c3) {
            for (std::int64_t s3 = 0; s3 < 3; ++s3, ++place) {
              const std::int64_t channel = (c0 * 3 + c1) * 2 + c3;
              const std::int64_t position = (s0 * 5 + s2) * 3 + s3;
              ASSERT_EQ(places.OfChannel(channel) + places.OfPosition(position), place);
              ASSERT_EQ(places.ChannelAt(place), channel);
              ASSERT_EQ(places.PositionAt(place), position);
            }
          }
        }
      }
    }
  }
}

TEST(MixedRunsTest, ProductsThatAreNoneAreZero) {
  EXPECT_EQ(ProductOf({2, 3, 4, 5}), 120);
  EXPECT_EQ(ProductOf({2, -3, -4, 5}), 0);
  EXPECT_EQ(ProductOf({std::int64_t{1} << 40, std::int64_t{1} << 40, 1, 1}), 0);
}

// All runs of up to two elements: elements keep their channels and positions, and no run of one
// element is left between two others.
TEST(MixedRunsTest, ShortRunsKeepEveryElementsPlace) {
  int shortened = 0;
  for (unsigned bits = 0; bits < 256; ++bits) {
    RunSizes channels, positions;
    for (unsigned i = 0; i < kMostRuns; ++i) {
      channels[i] = 1 + (bits >> i & 1);
      positions[i] = 1 + (bits >> (i + kMostRuns) & 1);
    }
    const MixedRuns before = {channels, positions};
    Case after = MixedRunsCase(channels, positions);
    ShortenRuns(&after.spec, &after.segment);
    const std::int64_t spatial = after.segment.spatial;
    const MixedRuns places = {after.spec.channel_runs, after.segment.spatial_runs};
    for (std::int64_t c = 0; c < after.spec.channels; ++c) {
      for (std::int64_t s = 0; s < spatial; ++s) {
        const std::int64_t wanted = before.OfChannel(c) + before.OfPosition(s);
        switch (after.spec.layout) {
          case Layout::kChannelsFirst: ASSERT_EQ(c * spatial + s, wanted) << bits; break;
          case Layout::kChannelsLast: ASSERT_EQ(s * after.spec.channels + c, wanted) << bits; break;
          default: ASSERT_EQ(places.OfChannel(c) + places.OfPosition(s), wanted) << bits;
        }
      }
    }
    // Where the dimensions change their kind more than once, or begin with channels and change.
    std::string kinds;
    for (std::size_t i = 0; i < kMostRuns; ++i) {
      if (channels[i] > 1 && (kinds.empty() || kinds.back() != 'c')) kinds += 'c';
      if (positions[i] > 1 && (kinds.empty() || kinds.back() != 's')) kinds += 's';
    }
    EXPECT_EQ(after.spec.layout == Layout::kMixedRuns, kinds.size() > 2) << bits;
    shortened += after.spec.layout != Layout::kMixedRuns;
  }
  EXPECT_GT(shortened, 50);
}

// LayerNorm over dimensions 1 and 3 of [2, 3, 4, 5] is that over the last two of [2, 4, 3, 5].
TEST(MixedRunsTest, TheReferenceIsThatOfAPermutedTensor) {
  Case made = MixedRunsCase({3, 5, 1, 1}, {4, 1, 1, 1});
  const auto at = [](std::int64_t n, std::int64_t a, std::int64_t b, std::int64_t c) {
    return static_cast<std::size_t>(((n * 3 + a) * 4 + b) * 5 + c);
  };
  const auto permuted_at = [](std::int64_t n, std::int64_t a, std::int64_t b, std::int64_t c) {
    return static_cast<std::size_t>(((n * 4 + b) * 3 + a) * 5 + c);
  };
  std::vector<double> x(120), permuted(120), y(120), wanted(120), gamma(15), mean(8), rstd(8);
  std::vector<double> wanted_mean(8), wanted_rstd(8);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * i % 31);
  for (std::size_t i = 0; i < gamma.size(); ++i) gamma[i] = static_cast<double>(i) - 4;
  const auto for_all = [](const auto& visit) {
    for (int n = 0; n < 2; ++n) {
      for (int a = 0; a < 3; ++a) {
        for (int b = 0; b < 4; ++b) {
          for (int c = 0; c < 5; ++c) visit(n, a, b, c);
        }
      }
    }
  };
  for_all(
      [&](int n, int a, int b, int c) { permuted[permuted_at(n, a, b, c)] = x[at(n, a, b, c)]; });
  NormParams params;
  params.gamma = {gamma.data(), DType::kFloat64};
  made.segment.x = x.data();
  made.segment.samples = 2;
  ASSERT_TRUE(
      NormalizeReference(made.spec, params, made.segment, {y.data(), mean.data(), rstd.data()})
          .ok());
  Segment segment;
  segment.x = permuted.data();
  segment.samples = 8;
  ASSERT_TRUE(NormalizeReference(LayerNormSpec(15, DType::kFloat64), params, segment,
                                 {wanted.data(), wanted_mean.data(), wanted_rstd.data()})
                  .ok());
  for_all([&](int n, int a, int b, int c) {
    EXPECT_EQ(y[at(n, a, b, c)], wanted[permuted_at(n, a, b, c)]);
  });
  EXPECT_EQ(mean, wanted_mean);
  EXPECT_EQ(rstd, wanted_rstd);
}

void ExpectRefused(const NormSpec& spec, const std::string& why) {
  const Status status = ValidateSpec(spec, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), why);
}

TEST(MixedRunsTest, WrongRunsAreRefused) {
  const NormSpec right = MixedRunsCase({2, 3, 1, 1}, {1, 1, 1, 1}).spec;
  EXPECT_TRUE(ValidateSpec(right, {}).ok());
  NormSpec spec = right;
  spec.channel_runs[2] = 2;
  ExpectRefused(spec, "channel_runs: [2, 3, 2, 1], wanted sizes whose product is 6 channels");
  spec.channel_runs = {-2, -3, 1, 1};
  ExpectRefused(spec, "channel_runs: [-2, -3, 1, 1], wanted sizes whose product is 6 channels");
  spec = right;
  spec.layout = Layout::kChannelsLast;
  ExpectRefused(spec, "channel_runs: [2, 3, 1, 1], wanted zeros: the layout is not of mixed runs");
  spec = right;
  spec.rows = Rows::kGroup;
  ExpectRefused(spec, "rows: of groups, wanted positions with a layout of mixed runs");
  spec = right;
  spec.groups = 2;
  ExpectRefused(spec, "groups: 2, wanted 1 with a layout of mixed runs");
  spec = right;
  spec.layout = static_cast<Layout>(3);
  ExpectRefused(spec, "layout: unknown value 3, wanted at most 2");
}

TEST(MixedRunsTest, WrongRunsOfASegmentAreRefused) {
  Case made = MixedRunsCase({2, 3, 1, 1}, {5, 2, 1, 1});
  double memory[60] = {};
  made.segment.x = made.segment.y = memory;
  EXPECT_TRUE(ValidateSegments(made.spec, &made.segment, 1).ok());
  made.segment.spatial_runs[3] = 0;
  EXPECT_EQ(ValidateSegments(made.spec, &made.segment, 1).message(),
            "segments[0].spatial_runs: [5, 2, 1, 0], wanted sizes whose product is 10");
  made.spec = LayerNormSpec(6, DType::kFloat64);
  EXPECT_EQ(ValidateSegments(made.spec, &made.segment, 1).message(),
            "segments[0].spatial_runs: [5, 2, 1, 0], wanted zeros: the spec's layout is not of "
            "mixed runs");
  made = MixedRunsCase({2, 3, 1, 1}, {5, 2, 1, 1});
  made.segment.x = made.segment.y = memory;
  float scales[10];
  made.segment.scale_out = scales;
  made.spec.quantization = Quantization::kInt8;
  made.spec.quantization_scale = QuantizationScale::kBlock;
  EXPECT_EQ(ValidateSegments(made.spec, &made.segment, 1).message(),
            "segments[0].spatial: 10, wanted 1: quantization in blocks wants rows that lie "
            "together");
}

}  // namespace
}  // namespace normd::norm
