#include "client/verify/default_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace normd::client {
namespace {

using ::testing::HasSubstr;

v1::ModelInfo Model(const std::vector<std::vector<std::int64_t>>& inputs) {
  const std::string names[] = {"x", "y", "z"};
  v1::ModelInfo model;
  for (const auto& shape : inputs) {
    v1::TensorInfo& input = *model.add_inputs();
    input.set_name(names[model.inputs_size() - 1]);
    input.mutable_shape()->Assign(shape.begin(), shape.end());
  }
  return model;
}

std::string ShapeOf(const v1::ModelInfo& model, std::size_t input) {
  return DefaultInputs(model)->at(input).shape.ToString();
}

TEST(DefaultInputsTest, IsAnImageWhereTheModelHasChannels) {
  EXPECT_EQ(ShapeOf(Model({{-1, 64, -2}}), 0), "[1, 64, 56, 56]");
  EXPECT_EQ(ShapeOf(Model({{-1, -2, 320}}), 0), "[1, 56, 56, 320]");
  EXPECT_EQ(ShapeOf(Model({{-1, -2, 3}}), 0), "[1, 56, 56, 3]");
  EXPECT_EQ(DefaultInputs(Model({{-1, -2, 3}}))->size(), 1U);
}

TEST(DefaultInputsTest, IsRowsWhereTheModelHasANormalizedShape) {
  EXPECT_EQ(ShapeOf(Model({{-2, 4, 1024}}), 0), "[8, 4, 1024]");
  EXPECT_EQ(ShapeOf(Model({{-2, 4096}}), 0), "[8, 4096]");
  EXPECT_EQ(ShapeOf(Model({{-1, 4096}}), 0), "[8, 4096]");
}

TEST(DefaultInputsTest, HasEveryInputWithAsManySamples) {
  const v1::ModelInfo rows = Model({{-2, 512}, {-2, 256}});
  EXPECT_EQ(DefaultInputs(rows)->size(), 2U);
  EXPECT_EQ(ShapeOf(rows, 0), "[8, 512]");
  EXPECT_EQ(ShapeOf(rows, 1), "[8, 256]");
  EXPECT_EQ(DefaultInputs(rows)->at(0).name, "x");
  EXPECT_EQ(DefaultInputs(rows)->at(1).name, "y");
  const v1::ModelInfo image = Model({{-1, 64, -2}, {-1, 64, -2}, {-1}});
  EXPECT_EQ(ShapeOf(image, 1), "[1, 64, 56, 56]");
  EXPECT_EQ(ShapeOf(image, 2), "[1]");
}

TEST(DefaultInputsTest, AServerThatIsOlderOrNewerAsksForAShape) {
  const absl::Status older = DefaultInputs({}).status();
  EXPECT_EQ(older.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(older.message()), HasSubstr("older than this program: wanted a shape"));
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{-1, -4}, {-2, 4, -2}, {-3, -2}, {INT64_MIN}}) {
    const absl::Status newer = DefaultInputs(Model({{-1, 4}, shape})).status();
    EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(newer.message()), HasSubstr("input \"y\": shape ["));
  }
  EXPECT_EQ(DefaultInputs(Model({{INT64_MAX, -2, INT64_MAX}})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace normd::client
