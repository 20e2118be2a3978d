#include "client/verify/default_inputs.h"

#include <gtest/gtest.h>

namespace normd::client {
namespace {

std::string ShapeOf(const v1::ModelConfig& config, std::size_t input) {
  return DefaultInputs(config)->at(input).shape.ToString();
}

TEST(DefaultInputsTest, IsAnImageWhereTheModelHasChannels) {
  v1::ModelConfig config;
  config.mutable_instance_norm()->set_channels(64);
  EXPECT_EQ(ShapeOf(config, 0), "[1, 64, 56, 56]");
  config.mutable_group_norm()->set_channels(320);
  config.set_layout(v1::CHANNELS_LAST);
  EXPECT_EQ(ShapeOf(config, 0), "[1, 56, 56, 320]");
  config.mutable_batch_norm()->set_channels(3);
  EXPECT_EQ(ShapeOf(config, 0), "[1, 56, 56, 3]");
  EXPECT_EQ(DefaultInputs(config)->size(), 1U);
}

TEST(DefaultInputsTest, IsRowsWhereTheModelHasANormalizedShape) {
  v1::ModelConfig config;
  config.mutable_layer_norm()->add_normalized_shape(4);
  config.mutable_layer_norm()->add_normalized_shape(1024);
  EXPECT_EQ(ShapeOf(config, 0), "[8, 4, 1024]");
  config.mutable_rms_norm()->add_normalized_shape(4096);
  EXPECT_EQ(ShapeOf(config, 0), "[8, 4096]");
}

TEST(DefaultInputsTest, HasASecondInputWhereTheEpilogueUsesOne) {
  v1::ModelConfig config;
  config.mutable_linear_norm()->set_in_features(512);
  config.mutable_linear_norm()->set_out_features(256);
  EXPECT_EQ(ShapeOf(config, 0), "[8, 512]");
  EXPECT_EQ(DefaultInputs(config)->size(), 1U);
  config.mutable_linear_norm()->mutable_epilogue()->set_add(true);
  EXPECT_EQ(ShapeOf(config, 1), "[8, 256]");
  EXPECT_EQ(DefaultInputs(config)->at(0).name, "x");
  EXPECT_EQ(DefaultInputs(config)->at(1).name, "y");
}

TEST(DefaultInputsTest, AnOperationThatIsNotKnownHasNone) {
  EXPECT_EQ(DefaultInputs({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace normd::client
