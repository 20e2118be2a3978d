#include "server/exec/device/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "operations/norm_operation.h"

namespace normd {
namespace {

using ::testing::Each;
using ::testing::Eq;

Geometry MakeGeometry(const norm::NormSpec& spec, std::int64_t samples, std::int64_t spatial) {
  Geometry geometry;
  geometry.samples = samples;
  geometry.spatial = spatial;
  geometry.rows = samples * spec.groups;
  const std::int64_t bytes =
      samples * spatial * spec.channels * static_cast<std::int64_t>(norm::SizeOf(spec.dtype));
  geometry.inputs = {{bytes, spec.dtype}};
  geometry.outputs = {{bytes, spec.dtype}};
  return geometry;
}

// Where a segment lies in the tensor of its request, and how much of it that is.
std::size_t TensorBytes(const PieceSegment& segment, const std::vector<Geometry>& requests) {
  return static_cast<std::size_t>(requests[segment.request].inputs[0].bytes);
}
std::size_t OffsetOf(const PieceSegment& segment, const std::vector<Geometry>& requests) {
  return segment.OffsetIn(TensorBytes(segment, requests));
}
std::size_t BytesOf(const PieceSegment& segment, const std::vector<Geometry>& requests) {
  return segment.BytesOf(TensorBytes(segment, requests));
}

// How often the pieces cover each byte of each request.
std::vector<std::vector<int>> Cover(const std::vector<Piece>& pieces,
                                    const std::vector<Geometry>& requests) {
  std::vector<std::vector<int>> cover;
  for (const Geometry& geometry : requests) {
    cover.emplace_back(static_cast<std::size_t>(geometry.inputs[0].bytes), 0);
  }
  for (const Piece& piece : pieces) {
    for (const PieceSegment& segment : piece.segments) {
      for (std::size_t i = 0; i < BytesOf(segment, requests); ++i) {
        ++cover[segment.request][OffsetOf(segment, requests) + i];
      }
    }
  }
  return cover;
}

TEST(PiecesTest, SmallRequestsShareAPiece) {
  const norm::NormSpec spec = norm::GroupNormSpec(8, 4, norm::DType::kFloat32);
  const std::vector<Geometry> requests = {MakeGeometry(spec, 2, 3), MakeGeometry(spec, 1, 5)};
  const std::vector<Piece> pieces = CutIntoPieces(CutRuleOf(spec), requests, 4096);
  ASSERT_EQ(pieces.size(), 1);
  EXPECT_EQ(pieces[0].segments.size(), 2);
  EXPECT_TRUE(pieces[0].channels.all());
}

TEST(PiecesTest, CutsBetweenSamplesAtTheTarget) {
  const norm::NormSpec spec = norm::LayerNormSpec(16, norm::DType::kFloat32);
  const std::vector<Geometry> requests = {MakeGeometry(spec, 10, 1)};  // 64 bytes a row
  const std::vector<Piece> pieces = CutIntoPieces(CutRuleOf(spec), requests, 256);
  ASSERT_EQ(pieces.size(), 3);
  EXPECT_EQ(pieces[0].segments[0].samples, 4);
  EXPECT_EQ(OffsetOf(pieces[1].segments[0], requests), 256u);
  EXPECT_EQ(pieces[2].segments[0].samples, 2);
}

TEST(PiecesTest, CutsALargeChannelsFirstSampleBetweenGroups) {
  const norm::NormSpec spec = norm::GroupNormSpec(12, 4, norm::DType::kFloat32);
  // A row of 3 channels x 8 elements: 96 bytes; a sample: 384.
  const std::vector<Geometry> requests = {MakeGeometry(spec, 2, 8)};
  const std::vector<Piece> pieces = CutIntoPieces(CutRuleOf(spec), requests, 200);
  ASSERT_EQ(pieces.size(), 4);
  EXPECT_EQ(pieces[1].channels, (ChannelRange{6, 6}));
  EXPECT_EQ(pieces[2].channels, (ChannelRange{0, 6}));
  EXPECT_EQ(OffsetOf(pieces[2].segments[0], requests), 384u);
}

TEST(PiecesTest, NeverCutsAChannelsLastSample) {
  norm::NormSpec spec = norm::GroupNormSpec(12, 4, norm::DType::kFloat32);
  spec.layout = norm::Layout::kChannelsLast;
  const std::vector<Geometry> requests = {MakeGeometry(spec, 3, 8)};
  const std::vector<Piece> pieces = CutIntoPieces(CutRuleOf(spec), requests, 100);
  ASSERT_EQ(pieces.size(), 3);
  EXPECT_EQ(pieces[0].bytes, 384);
}

TEST(PiecesTest, APartOfASampleIsCutWithinItsChannels) {
  const norm::NormSpec spec = norm::GroupNormSpec(12, 4, norm::DType::kFloat32);
  Geometry part = MakeGeometry(spec, 1, 8);
  part.channels = {3, 9};
  part.rows = 3;
  part.inputs = {{3 * 96}};
  part.outputs = {{3 * 96}};
  const std::vector<Geometry> requests = {MakeGeometry(spec, 1, 1), part, MakeGeometry(spec, 1, 1)};
  const std::vector<Piece> whole = CutIntoPieces(CutRuleOf(spec), requests, 4096);
  ASSERT_EQ(whole.size(), 3) << "a part shares no piece";
  EXPECT_TRUE(whole[0].channels.all());
  EXPECT_EQ(whole[1].channels, (ChannelRange{3, 9}));
  EXPECT_EQ(whole[1].bytes, 3 * 96);
  EXPECT_TRUE(whole[2].channels.all());
  const std::vector<Piece> cut = CutIntoPieces(CutRuleOf(spec), {part}, 200);
  ASSERT_EQ(cut.size(), 2);
  EXPECT_EQ(cut[0].channels, (ChannelRange{3, 6}));
  EXPECT_EQ(cut[1].channels, (ChannelRange{9, 3}));
  EXPECT_EQ(OffsetOf(cut[1].segments[0], {part}), 192u);
}

TEST(PiecesTest, RequestsWithoutElementsAppearInNoPiece) {
  const norm::NormSpec spec = norm::InstanceNormSpec(4, norm::DType::kFloat16);
  const std::vector<Geometry> requests = {MakeGeometry(spec, 0, 9), MakeGeometry(spec, 1, 9)};
  const std::vector<Piece> pieces = CutIntoPieces(CutRuleOf(spec), requests, 64);
  for (const Piece& piece : pieces) {
    for (const PieceSegment& segment : piece.segments) EXPECT_EQ(segment.request, 1);
  }
}

TEST(PiecesTest, ParametersFollowTheChannels) {
  const norm::NormSpec spec = norm::GroupNormSpec(12, 4, norm::DType::kFloat32);
  const std::vector<float> gamma(12);
  const std::vector<std::uint16_t> beta(12);
  norm::NormParams params;
  params.gamma = {gamma.data(), norm::DType::kFloat32};
  params.beta = {beta.data(), norm::DType::kBFloat16};
  const ChannelRange channels{6, 3};
  const norm::NormParams part = ParamsOf(params, channels);
  EXPECT_EQ(part.gamma.data, gamma.data() + 6);
  EXPECT_EQ(part.beta.data, beta.data() + 6);
  EXPECT_EQ(part.mean.data, nullptr);
  EXPECT_EQ(SpecOf(spec, channels).channels, 3);
  EXPECT_EQ(SpecOf(spec, channels).groups, 1);
}

TEST(PiecesTest, CoversEveryByteOnceForRandomBatches) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto pick = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const int groups = pick(1, 6);
    norm::NormSpec spec = norm::GroupNormSpec(groups * pick(1, 4), groups, norm::DType::kFloat32);
    if (pick(0, 1) == 1) spec.layout = norm::Layout::kChannelsLast;
    std::vector<Geometry> requests;
    for (int i = pick(1, 5); i > 0; --i)
      requests.push_back(MakeGeometry(spec, pick(0, 5), pick(1, 9)));
    const std::vector<Piece> pieces = CutIntoPieces(CutRuleOf(spec), requests, pick(1, 2000));
    for (const std::vector<int>& bytes : Cover(pieces, requests)) {
      ASSERT_THAT(bytes, Each(Eq(1)));
    }
    for (const Piece& piece : pieces) {
      const std::int64_t sum =
          std::accumulate(piece.segments.begin(), piece.segments.end(), std::int64_t{0},
                          [&](std::int64_t total, const PieceSegment& segment) {
                            return total + static_cast<std::int64_t>(BytesOf(segment, requests));
                          });
      ASSERT_EQ(sum, piece.bytes);
    }
  }
}

}  // namespace
}  // namespace normd
