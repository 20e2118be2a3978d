#include "client/normload/default_shape.h"

#include <gtest/gtest.h>

namespace normd::load {
namespace {

TEST(DefaultShapeTest, IsAnImageWhereTheModelHasChannels) {
  v1::ModelConfig config;
  config.mutable_instance_norm()->set_channels(64);
  EXPECT_EQ(DefaultShapesFor(config)->x.ToString(), "[1, 64, 56, 56]");
  config.mutable_group_norm()->set_channels(320);
  config.set_layout(v1::CHANNELS_LAST);
  EXPECT_EQ(DefaultShapesFor(config)->x.ToString(), "[1, 56, 56, 320]");
  config.mutable_batch_norm()->set_channels(3);
  EXPECT_EQ(DefaultShapesFor(config)->x.ToString(), "[1, 56, 56, 3]");
  EXPECT_FALSE(DefaultShapesFor(config)->y.has_value());
}

TEST(DefaultShapeTest, IsRowsWhereTheModelHasANormalizedShape) {
  v1::ModelConfig config;
  config.mutable_layer_norm()->add_normalized_shape(4);
  config.mutable_layer_norm()->add_normalized_shape(1024);
  EXPECT_EQ(DefaultShapesFor(config)->x.ToString(), "[8, 4, 1024]");
  config.mutable_rms_norm()->add_normalized_shape(4096);
  EXPECT_EQ(DefaultShapesFor(config)->x.ToString(), "[8, 4096]");
}

TEST(DefaultShapeTest, HasASecondInputWhereTheEpilogueUsesOne) {
  v1::ModelConfig config;
  config.mutable_linear_norm()->set_in_features(512);
  config.mutable_linear_norm()->set_out_features(256);
  EXPECT_EQ(DefaultShapesFor(config)->x.ToString(), "[8, 512]");
  EXPECT_FALSE(DefaultShapesFor(config)->y.has_value());
  config.mutable_linear_norm()->mutable_epilogue()->set_add(true);
  EXPECT_EQ(DefaultShapesFor(config)->y->ToString(), "[8, 256]");
}

TEST(DefaultShapeTest, AnOperationThatIsNotKnownHasNone) {
  EXPECT_EQ(DefaultShapesFor({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace normd::load
