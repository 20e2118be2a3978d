// What ValidateSegments refuses of the stages' tensors: one case for each condition.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/norm.h"
#include "tests/kernels/refusal.h"

namespace normd::norm {
namespace {

// A segment of 2 samples of 4 channels of 2 elements, in float32.
class StagesSegmentTest : public ::testing::Test {
 protected:
  StagesSegmentTest() {
    segment_.x = memory;
    segment_.y = memory;
    segment_.samples = segment_.spatial = 2;
  }
  Status Validate(InputAlignment input = InputAlignment::kElement) const {
    return ValidateSegments(spec_, &segment_, 1, input);
  }
  void ExpectRefused(const std::string& beginning) const {
    ExpectInvalid(Validate(), "segments[0]." + beginning);
  }
  void ExpectAccepted(InputAlignment input = InputAlignment::kElement) const {
    const Status status = Validate(input);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  // `field` is wanted now: null is refused, `good` accepted, and `odd` only where inputs may begin
  // at any byte.
  template <typename Pointer>
  void ExpectWanted(const std::string& name, Pointer Segment::*field, Pointer good,
                    bool is_input = true) {
    segment_.*field = nullptr;
    ExpectRefused(name + ": null");
    const auto address = reinterpret_cast<std::uintptr_t>(good) + 1;
    segment_.*field = reinterpret_cast<Pointer>(address);
    ExpectRefused(name + ": not aligned");
    const Status bytes = Validate(InputAlignment::kByte);
    EXPECT_EQ(bytes.ok(), is_input) << name << ": " << bytes.message();
    segment_.*field = good;
    ExpectAccepted();
  }

  NormSpec spec_ = GroupNormSpec(4, 2, DType::kFloat32);
  Segment segment_;
};

TEST_F(StagesSegmentTest, RefusesTensorsThatTheSpecHasNoUseFor) {
  ExpectAccepted();
  const auto refused = [&](const std::string& field, const auto& set) {
    const Segment segment = segment_;
    set(segment_);
    ExpectRefused(field + ": set, but");
    segment_ = segment;
  };
  static constexpr std::int64_t kIndex[2] = {};
  refused("other", [](Segment& segment) { segment.other = memory; });
  refused("gate", [](Segment& segment) { segment.gate = memory; });
  refused("scale", [](Segment& segment) { segment.scale = memory; });
  refused("shift", [](Segment& segment) { segment.shift = memory; });
  refused("style_index", [](Segment& segment) { segment.style_index = kIndex; });
  refused("style_weights", [](Segment& segment) { segment.style_weights = memory; });
  refused("style_tensor", [](Segment& segment) { segment.style_tensor = memory; });
  refused("scale_out", [](Segment& segment) { segment.scale_out = memory; });
}

TEST_F(StagesSegmentTest, WantsTheTensorsOfItsStages) {
  spec_.combine_input = Combine::kMultiply;
  ExpectWanted<const void*>("other", &Segment::other, memory);
  spec_.combine_input = Combine::kNone;
  spec_.combine_output = Combine::kAdd;
  ExpectWanted<const void*>("other", &Segment::other, memory);
  spec_.scale = true;
  ExpectWanted<const void*>("scale", &Segment::scale, memory);
  spec_.shift = true;
  ExpectWanted<const void*>("shift", &Segment::shift, memory);
  spec_.residual = true;
  ExpectWanted<const void*>("residual", &Segment::residual, memory);
  spec_.gate = true;
  ExpectWanted<const void*>("gate", &Segment::gate, memory);
  spec_.residual_out = true;
  ExpectWanted<void*>("residual_out", &Segment::residual_out, memory, false);
}

TEST_F(StagesSegmentTest, WantsTheStyleThatTheSpecNames) {
  static constexpr std::int64_t kIndex[2] = {};
  spec_.style = Style::kIndex;
  spec_.styles = 3;
  ExpectWanted<const std::int64_t*>("style_index", &Segment::style_index, kIndex);
  segment_.style_weights = memory;
  ExpectRefused("style_weights: set, but");
  segment_.style_index = nullptr;
  spec_.style = Style::kMix;
  ExpectWanted<const void*>("style_weights", &Segment::style_weights, memory);
  segment_.style_weights = nullptr;
  segment_.style_spatial = 3;
  spec_.style = Style::kTensor;
  spec_.styles = 0;
  spec_.groups = 4;
  ExpectWanted<const void*>("style_tensor", &Segment::style_tensor, memory);
  for (const std::int64_t spatial : {0, -1}) {
    segment_.style_spatial = spatial;
    ExpectRefused("style_spatial: " + std::to_string(spatial) + ", wanted at least 1");
  }
}

TEST_F(StagesSegmentTest, RefusesAStyleSpatialWithoutAStyleTensor) {
  for (const std::int64_t spatial : {3, -1}) {
    segment_.style_spatial = spatial;
    ExpectRefused("style_spatial: " + std::to_string(spatial) + ", wanted 0");
  }
}

TEST_F(StagesSegmentTest, GivesTheStatisticsThatExist) {
  segment_.mean_out = segment_.rstd_out = memory;
  ExpectAccepted();
  for (const Statistics statistics :
       {Statistics::kMeanSquare, Statistics::kSumOfAbsolutes, Statistics::kRootOfSquares,
        Statistics::kLargestAbsolute, Statistics::kGiven}) {
    spec_.statistics = statistics;
    segment_.mean_out = memory;
    ExpectRefused("mean_out: set, but");
    segment_.mean_out = nullptr;
    if (statistics != Statistics::kGiven) ExpectAccepted();
  }
  ExpectRefused("rstd_out: set, but the statistics are given");
}

TEST_F(StagesSegmentTest, WantsStatisticsAlignedToTheAccumulationType) {
  char* const at = reinterpret_cast<char*>(memory);
  for (void* Segment::*out : {&Segment::mean_out, &Segment::rstd_out}) {
    const std::string name = out == &Segment::mean_out ? "mean_out" : "rstd_out";
    spec_.dtype = DType::kFloat16;
    segment_.*out = at + 2;
    ExpectInvalid(Validate(InputAlignment::kByte), "segments[0]." + name + ": not aligned");
    segment_.*out = at + 4;
    ExpectAccepted();
    spec_.dtype = DType::kFloat64;
    ExpectInvalid(Validate(InputAlignment::kByte), "segments[0]." + name + ": not aligned");
    segment_.*out = nullptr;
  }
}

TEST_F(StagesSegmentTest, WantsScaleOutForTheScalesOfRowsAndBlocks) {
  spec_.quantization = Quantization::kInt8;
  spec_.output_scale = 1;
  segment_.y = reinterpret_cast<char*>(memory) + 1;  // Bytes are aligned anywhere.
  ExpectAccepted();
  segment_.scale_out = memory;
  ExpectRefused("scale_out: set, but");
  spec_.output_scale = 0;
  for (const QuantizationScale scale : {QuantizationScale::kRow, QuantizationScale::kBlock}) {
    spec_.quantization_scale = scale;
    ExpectWanted<float*>("scale_out", &Segment::scale_out, memory, false);
  }
}

TEST_F(StagesSegmentTest, WantsRowsThatLieTogetherForBlocks) {
  spec_.quantization = Quantization::kInt8;
  spec_.quantization_scale = QuantizationScale::kBlock;
  segment_.scale_out = memory;
  for (const Rows rows : {Rows::kGroup, Rows::kPosition}) {
    for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
      spec_.rows = rows;
      spec_.layout = layout;
      segment_.spatial = 1;
      ExpectAccepted();
      segment_.spatial = 2;
      if ((rows == Rows::kGroup) == (layout == Layout::kChannelsFirst)) {
        ExpectAccepted();
      } else {
        ExpectRefused("spatial: 2, wanted 1");
      }
    }
  }
}

TEST_F(StagesSegmentTest, RefusesBytesBeyond63Bits) {
  // The statistics of 2^61 rows of one element each have 4 bytes, x has 2.
  spec_ = InstanceNormSpec(2, DType::kFloat16);
  segment_.spatial = 1;
  segment_.samples = std::int64_t{1} << 60;
  ExpectRefused("samples: bytes overflow");
  segment_.samples = (std::int64_t{1} << 60) - 1;
  ExpectAccepted();

  spec_.style = Style::kTensor;
  segment_.style_tensor = memory;
  segment_.samples = 1;
  for (const std::int64_t spatial : {kMax, std::int64_t{1} << 61}) {
    segment_.style_spatial = spatial;
    ExpectRefused("style_spatial: bytes overflow");
  }
  segment_.style_spatial = (std::int64_t{1} << 61) - 1;
  ExpectAccepted();

  spec_ = InstanceNormSpec(2, DType::kFloat16);
  spec_.style = Style::kMix;
  spec_.styles = std::int64_t{1} << 58;
  segment_ = {memory, memory, 16, 1};
  segment_.style_weights = memory;
  ExpectRefused("style_weights: bytes overflow");
  segment_.samples = 3;
  ExpectAccepted();
}

TEST_F(StagesSegmentTest, ChecksASegmentsOwnParametersAgainstTheSpec) {
  NormParams own;
  segment_.params = &own;
  spec_.residual_out = true;
  segment_.residual_out = memory;
  ExpectRefused("params: residual_out: set without");
  own.input_bias = kPresent;
  ExpectAccepted();
  spec_.style = Style::kIndex;
  spec_.styles = 1;
  const std::int64_t index[2] = {};
  segment_.style_index = index;
  ExpectRefused("params: gamma and beta: missing");
}

TEST_F(StagesSegmentTest, AsksNothingOfASegmentWithoutElements) {
  spec_.residual = spec_.residual_out = spec_.scale = true;
  for (const auto& [samples, spatial] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {5, 0}}) {
    segment_ = {};
    segment_.samples = samples;
    segment_.spatial = spatial;
    ExpectAccepted();
  }
}

}  // namespace
}  // namespace normd::norm
