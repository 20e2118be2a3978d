// Some of a segment's samples, against the list of its tensors with their sizes.

#include "kernels/sample_range.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/norm.h"
#include "tests/support/segment_tensors.h"

namespace normd::norm {
namespace {

// Addresses that no tensor shares; nothing is read there.
void PlaceTensors(const NormSpec& spec, Segment* segment) {
  std::uintptr_t place = 1 << 20;
  for (const testing::SegmentTensor& tensor : testing::TensorsOf(spec, segment)) {
    *tensor.address = reinterpret_cast<void*>(place);
    place += tensor.bytes + (1 << 20);
  }
}

TEST(SamplesOfTest, MovesEveryTensorByTheBytesOfTheSamplesBefore) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const Rows rows : {Rows::kGroup, Rows::kPosition}) {
      for (const QuantizationScale scale :
           {QuantizationScale::kStatic, QuantizationScale::kRow, QuantizationScale::kBlock}) {
        for (const Quantization quantization : {Quantization::kNone, Quantization::kInt8}) {
          NormSpec spec = LayerNormSpec(300, dtype);
          spec.groups = 3;
          spec.rows = rows;
          spec.styles = 7;
          spec.quantization = quantization;
          spec.quantization_scale = scale;
          Segment segment;
          segment.samples = 5;
          segment.spatial = 11;
          segment.style_spatial = 13;
          PlaceTensors(spec, &segment);
          Segment part = SamplesOf(spec, segment, 2, 3);
          EXPECT_EQ(part.samples, 3);
          EXPECT_EQ(part.spatial, 11);
          const auto whole = testing::TensorsOf(spec, &segment);
          const auto moved = testing::TensorsOf(spec, &part);
          for (std::size_t i = 0; i < whole.size(); ++i) {
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*moved[i].address),
                      reinterpret_cast<std::uintptr_t>(*whole[i].address) + whole[i].bytes / 5 * 2)
                << "tensor " << i;
          }
        }
      }
    }
  }
}

TEST(SamplesOfTest, MovesXAndYByTheirPitches) {
  NormSpec spec = LayerNormSpec(300, DType::kFloat16);
  spec.residual = true;
  spec.quantization = Quantization::kInt8;
  Segment segment;
  segment.samples = 5;
  segment.x_pitch = 1000;
  segment.y_pitch = 301;
  PlaceTensors(spec, &segment);
  const Segment part = SamplesOf(spec, segment, 2, 3);
  const auto distance = [](const void* from, const void* to) {
    return reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  };
  EXPECT_EQ(distance(segment.x, part.x), 2 * 1000 * 2);
  EXPECT_EQ(distance(segment.y, part.y), 2 * 301);
  EXPECT_EQ(distance(segment.residual, part.residual), 2 * 300 * 2);
  EXPECT_EQ(part.x_pitch, 1000);
  EXPECT_EQ(GapsOf(spec, part).x, 700);
  EXPECT_EQ(GapsOf(spec, part).y, 1);
  EXPECT_FALSE(GapsOf(spec, SamplesOf(spec, segment, 4, 1)).any()) << "no sample follows";
}

TEST(SamplesOfTest, LeavesOutWhatIsNotThere) {
  Segment segment;
  segment.samples = 5;
  segment.spatial = 11;
  const NormSpec spec = LayerNormSpec(300, DType::kFloat32);
  Segment part = SamplesOf(spec, segment, 2, 3);
  for (const testing::SegmentTensor& tensor : testing::TensorsOf(spec, &part)) {
    EXPECT_EQ(*tensor.address, nullptr);
  }
}

}  // namespace
}  // namespace normd::norm
