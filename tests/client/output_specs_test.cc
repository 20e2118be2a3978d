#include "client/output_specs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace normd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Pattern = std::initializer_list<std::int64_t>;

v1::TensorInfo Info(const char* name, Pattern shape) {
  v1::TensorInfo info;
  info.set_name(name);
  for (const std::int64_t size : shape) info.add_shape(size);
  return info;
}

v1::ModelInfo Model(std::initializer_list<v1::TensorInfo> inputs,
                    std::initializer_list<v1::TensorInfo> outputs) {
  v1::ModelInfo model;
  model.set_name("m");
  for (const v1::TensorInfo& input : inputs) *model.add_inputs() = input;
  for (const v1::TensorInfo& output : outputs) *model.add_outputs() = output;
  return model;
}

TensorSpec Spec(const char* name, Pattern dims, norm::DType dtype = norm::DType::kFloat32) {
  return {name, dtype, *Shape::Create(std::vector<std::int64_t>(dims))};
}

// "y:float32:[2, 3]", one after the other; or the error's message.
std::string Told(const v1::ModelInfo& model, std::initializer_list<TensorSpec> inputs,
                 std::vector<std::string> wanted = {}) {
  const auto specs = OutputSpecs(model, std::vector<TensorSpec>(inputs), wanted);
  if (!specs.ok()) return std::string(specs.status().message());
  std::string told;
  for (const TensorSpec& spec : *specs) {
    told += spec.name + ":" + std::string(norm::Name(spec.dtype)) + ":" + spec.shape.ToString();
  }
  return told;
}

TEST(OutputSpecsTest, AnImageKeepsWhateverDimensionsItHas) {
  const v1::ModelInfo model = Model({Info("x", {-1, 64, -2})}, {Info("y", {-1, 64, -2})});
  EXPECT_EQ(Told(model, {Spec("", {2, 64, 5, 7})}), "y:float32:[2, 64, 5, 7]");
  EXPECT_EQ(Told(model, {Spec("x", {0, 64}, norm::DType::kFloat16)}), "y:float16:[0, 64]");
  EXPECT_THAT(Told(model, {Spec("x", {2, 63, 5})}), HasSubstr("wanted [?, 64, *]"));
  EXPECT_THAT(Told(model, {Spec("x", {2})}), HasSubstr("shape [2], wanted"));
  EXPECT_THAT(Told(model, {Spec("z", {2, 64})}), HasSubstr("input \"z\": not one of m's"));
}

TEST(OutputSpecsTest, RowsOfAnyRankAndOutputsOfTheirOwnTypesAndShapes) {
  v1::TensorInfo scale = Info("scale", {-2, 1});
  scale.set_dtype(v1::FLOAT32);
  scale.set_dtype_of_float64(v1::FLOAT64);
  v1::TensorInfo mean = Info("mean", {-2});
  mean.set_on_request(true);
  v1::TensorInfo y = Info("y", {-2, 8});
  y.set_dtype(v1::INT8);
  const v1::ModelInfo model =
      Model({Info("x", {-2, 8}), Info("residual", {-2, 8})}, {y, scale, mean});
  const TensorSpec x = Spec("x", {3, 4, 8}, norm::DType::kBFloat16);
  const TensorSpec residual = Spec("residual", {3, 4, 8}, norm::DType::kBFloat16);
  EXPECT_EQ(Told(model, {x, residual}), "y:int8:[3, 4, 8]scale:float32:[3, 4, 1]");
  EXPECT_EQ(Told(model, {residual, x}, {"mean", "y"}), "y:int8:[3, 4, 8]mean:bfloat16:[3, 4]");
  EXPECT_EQ(Told(model, {Spec("x", {8}, norm::DType::kFloat64)}, {"scale"}), "scale:float64:[1]");
  EXPECT_THAT(Told(model, {x, Spec("residual", {4, 3, 8})}), HasSubstr("input \"residual\""));
  EXPECT_THAT(Told(model, {x}, {"y", "nothing"}), HasSubstr("2 names, of which m has 1"));
}

TEST(OutputSpecsTest, SizesAtOnePlaceAreTheSameAndOwnDimensionsAreNot) {
  const v1::ModelInfo model =
      Model({Info("x", {-1, -1, -2}), Info("style", {-1, -1, -3})}, {Info("y", {-1, -1, -2})});
  EXPECT_EQ(Told(model, {Spec("x", {2, 3, 4}), Spec("style", {2, 3, 9, 9})}),
            "y:float32:[2, 3, 4]");
  EXPECT_THAT(Told(model, {Spec("x", {2, 3, 4}), Spec("style", {2, 5, 9})}),
              HasSubstr("input \"style\""));
}

TEST(OutputSpecsTest, SaysWhatItCannotTell) {
  EXPECT_THAT(Told(Model({}, {}), {Spec("x", {1})}), HasSubstr("older than this program"));
  const v1::ModelInfo own = Model({Info("x", {-2})}, {Info("y", {-3})});
  EXPECT_THAT(Told(own, {Spec("x", {1})}), HasSubstr("do not tell its size"));
  const v1::ModelInfo unknown = Model({Info("x", {-2})}, {Info("y", {-9})});
  EXPECT_THAT(Told(unknown, {Spec("x", {1})}), HasSubstr("output \"y\": shape"));
}

}  // namespace
}  // namespace normd::client
