// Some of a segment's samples, against the list of its tensors with their sizes.

#include "kernels/sample_range.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

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
