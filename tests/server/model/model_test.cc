#include "server/model/model.h"
#include "operations/kernel_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "tests/server/model/model_fixture.h"
#include "wire/tensor_message.h"

namespace normd::testing {
namespace {

using norm::DType;
using ::testing::HasSubstr;

class ModelTest : public ModelFixture {
 protected:
  std::shared_ptr<Model> MustCreate(const std::string& config, std::vector<Parameter> parameters) {
    auto model = Create(config, std::move(parameters));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *model : nullptr;
  }
};

TEST_F(ModelTest, KnowsWhatItWasMadeOf) {
  const auto model =
      MustCreate("group_norm { channels: 4 groups: 2 } activation: SILU",
                 {ZeroParameter("weight", {4}), ZeroParameter("bias", {4}, DType::kFloat16)});
  EXPECT_EQ(model->name(), "m");
  EXPECT_EQ(model->version(), 3);
  EXPECT_EQ(model->config().group_norm().groups(), 2);
  ASSERT_EQ(model->parameters().size(), 2u);
  EXPECT_EQ(&model->metrics(), metrics_.ForModel("m", 3).get());
  EXPECT_EQ(model->backend_state(), nullptr);
  const auto& program = std::get<NormProgram>(model->program());
  const norm::NormParams& params = program.params;
  EXPECT_EQ(params.gamma.data, model->parameters()[0].data.get());
  EXPECT_EQ(params.gamma.dtype, DType::kFloat32);
  EXPECT_EQ(params.beta.data, model->parameters()[1].data.get());
  EXPECT_EQ(params.beta.dtype, DType::kFloat16);
  EXPECT_EQ(params.mean.data, nullptr);
  EXPECT_EQ(params.variance.data, nullptr);
  const norm::NormSpec spec = program.Spec(DType::kBFloat16);
  EXPECT_EQ(spec.dtype, DType::kBFloat16);
  EXPECT_EQ(spec.groups, 2);
  EXPECT_EQ(spec.activation, norm::Activation::kSilu);
}

TEST_F(ModelTest, RmsNormWithoutEpsTakesTheMachineEpsilonOfTheRequest) {
  const auto model = MustCreate("rms_norm { normalized_shape: 4 affine: false }", {});
  EXPECT_EQ(std::get<NormProgram>(model->program()).Spec(DType::kFloat64).eps, 0x1p-52);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    EXPECT_EQ(std::get<NormProgram>(model->program()).Spec(dtype).eps, 0x1p-23);
    EXPECT_EQ(std::get<NormProgram>(model->program()).Spec(dtype).dtype, dtype);
  }
}

TEST_F(ModelTest, RefusesAParameterThatComesTwice) {
  const auto weight = ZeroParameter("weight", {4});
  EXPECT_EQ(CreateError("rms_norm { normalized_shape: 4 }", {weight, weight}),
            "parameter weight: twice");
}

// What Check answers to a shape.
class ModelCheckTest : public ModelTest {
 protected:
  absl::StatusOr<Geometry> Check(const std::string& config, const std::vector<std::int64_t>& dims,
                                 DType dtype = DType::kFloat32) {
    const absl::StatusOr<Shape> shape = Shape::Create(dims);
    if (!shape.ok()) return shape.status();
    return MustCreate(config, {})->Check(dtype, *shape);
  }
  struct Wanted {
    std::int64_t samples, spatial, rows, bytes;
  };
  void ExpectGeometry(const std::string& config, const std::vector<std::int64_t>& dims,
                      const Wanted& wanted, DType dtype = DType::kFloat32) {
    const absl::StatusOr<Geometry> got = Check(config, dims, dtype);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->samples, wanted.samples);
    EXPECT_EQ(got->spatial, wanted.spatial);
    EXPECT_EQ(got->rows, wanted.rows);
    EXPECT_EQ(got->InputBytes(), wanted.bytes);
    EXPECT_EQ(got->OutputBytes(), wanted.bytes);
  }
  std::string Error(const std::string& config, const std::vector<std::int64_t>& dims,
                    DType dtype = DType::kFloat32) {
    const absl::Status status = Check(config, dims, dtype).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  static constexpr char kInstance[] = "instance_norm { channels: 4 }";
  static constexpr char kGroup[] = "group_norm { channels: 4 groups: 2 affine: false }";
  static constexpr char kGroupLast[] =
      "group_norm { channels: 4 groups: 2 affine: false } layout: CHANNELS_LAST";
  static constexpr char kLayer[] = "layer_norm { normalized_shape: [3, 4] affine: false }";
};

TEST_F(ModelCheckTest, DividesChannelsFirstIntoRows) {
  ExpectGeometry(kInstance, {2, 4}, {2, 1, 8, 32});
  ExpectGeometry(kInstance, {2, 4, 5}, {2, 5, 8, 160});
  ExpectGeometry(kGroup, {2, 4, 5, 6}, {2, 30, 4, 960});
  ExpectGeometry(kGroup, {2, 4, 5, 6}, {2, 30, 4, 1920}, DType::kFloat64);
  ExpectGeometry(kGroup, {2, 4, 5, 6}, {2, 30, 4, 480}, DType::kFloat16);
}

TEST_F(ModelCheckTest, DividesChannelsLastIntoRows) {
  ExpectGeometry(kGroupLast, {2, 4}, {2, 1, 4, 32});
  ExpectGeometry(kGroupLast, {2, 5, 6, 4}, {2, 30, 4, 960});
}

TEST_F(ModelCheckTest, DividesByTheNormalizedShape) {
  ExpectGeometry(kLayer, {3, 4}, {1, 1, 1, 48});
  ExpectGeometry(kLayer, {2, 5, 3, 4}, {10, 1, 10, 480});
}

TEST_F(ModelCheckTest, TakesTheLargestRank) {
  std::vector<std::int64_t> dims(kMaxRank, 1);
  dims[1] = 4;
  ExpectGeometry(kInstance, dims, {1, 1, 4, 16});
}

TEST_F(ModelCheckTest, TakesNoSamples) {
  ExpectGeometry(kInstance, {0, 4, 5}, {0, 5, 0, 0});
  ExpectGeometry(kGroupLast, {0, 5, 4}, {0, 5, 0, 0});
  ExpectGeometry(kLayer, {0, 3, 4}, {0, 1, 0, 0});
  ExpectGeometry(kLayer, {2, 0, 3, 4}, {0, 1, 0, 0});
}

TEST_F(ModelCheckTest, RefusesOtherZeroDimensions) {
  EXPECT_EQ(Error(kInstance, {2, 0, 5}), "shape[1]: 0 channels in [2, 0, 5], wanted 4");
  EXPECT_EQ(Error(kInstance, {2, 4, 5, 0}), "shape[3]: 0 in [2, 4, 5, 0], wanted at least 1");
  EXPECT_EQ(Error(kInstance, {0, 4, 0}), "shape[2]: 0 in [0, 4, 0], wanted at least 1");
  EXPECT_EQ(Error(kGroupLast, {2, 0, 4}), "shape[1]: 0 in [2, 0, 4], wanted at least 1");
  EXPECT_EQ(Error(kLayer, {2, 0, 4}), "shape[1]: 0 in [2, 0, 4], wanted [*, 3, 4]");
}

TEST_F(ModelCheckTest, RefusesTooFewDimensions) {
  EXPECT_EQ(Error(kInstance, {}), "shape: [] has 0 dimensions, wanted at least 2, [N, C, *]");
  EXPECT_EQ(Error(kInstance, {4}), "shape: [4] has 1 dimension, wanted at least 2, [N, C, *]");
  EXPECT_EQ(Error(kGroupLast, {4}), "shape: [4] has 1 dimension, wanted at least 2, [N, *, C]");
  EXPECT_EQ(Error(kLayer, {}), "shape: [] has 0 dimensions, wanted [*, 3, 4]");
  EXPECT_EQ(Error(kLayer, {4}), "shape: [4] has 1 dimension, wanted [*, 3, 4]");
}

TEST_F(ModelCheckTest, RefusesOtherChannels) {
  EXPECT_EQ(Error(kInstance, {2, 5, 4}), "shape[1]: 5 channels in [2, 5, 4], wanted 4");
  EXPECT_EQ(Error(kGroupLast, {2, 4, 5}), "shape[2]: 5 channels in [2, 4, 5], wanted 4");
}

TEST_F(ModelCheckTest, RefusesAnotherNormalizedShape) {
  EXPECT_EQ(Error(kLayer, {2, 4, 3}), "shape[1]: 4 in [2, 4, 3], wanted [*, 3, 4]");
  EXPECT_EQ(Error(kLayer, {12}), "shape: [12] has 1 dimension, wanted [*, 3, 4]");
}

TEST_F(ModelCheckTest, RefusesBytesBeyond63Bits) {
  // 2^62 - 4 elements, four bytes each.
  constexpr std::int64_t kSpatial = (std::int64_t{1} << 60) - 1;
  EXPECT_THAT(Error(kInstance, {1, 4, kSpatial}), HasSubstr("float32 has over 2^63 bytes"));
  EXPECT_THAT(Error(kInstance, {1, 4, std::numeric_limits<std::int64_t>::max()}),
              HasSubstr("has more than 2^63 elements"));
  // Empty, and yet no way around the limit for what follows.
  EXPECT_THAT(Error(kInstance, {0, 4, std::numeric_limits<std::int64_t>::max()}),
              HasSubstr("has more than 2^63 elements"));
}

TEST_F(ModelCheckTest, TakesTheConfiguredTypesAlone) {
  const std::string config = std::string(kInstance) + " dtypes: [FLOAT32, BFLOAT16]";
  ExpectGeometry(config, {1, 4}, {1, 1, 4, 8}, DType::kBFloat16);
  EXPECT_EQ(Error(config, {1, 4}, DType::kFloat16), "dtype: FLOAT16, wanted FLOAT32 or BFLOAT16");
}

TEST_F(ModelCheckTest, NamesXAmongSeveralInputs) {
  for (const std::string config : {"add_rms_norm { normalized_shape: 4 affine: false }",
                                   "add_layer_norm { normalized_shape: 4 affine: false }",
                                   "gated_rms_norm { normalized_shape: 4 affine: false }",
                                   "adaptive_layer_norm { features: 4 }",
                                   "adaptive_layer_norm { features: 4 gated_residual: true }",
                                   "adaptive_group_norm { channels: 4 groups: 2 }",
                                   "adaptive_instance_norm { channels: 4 }"}) {
    for (const DType wrong : {DType::kFloat16, DType::kInt64, DType::kInt8}) {
      const auto model = MustCreate(config + " dtypes: [FLOAT32, FLOAT64]", {});
      ASSERT_GT(model->inputs().size(), 1u) << config;
      const TensorType right = {DType::kFloat32, Shape::Create({2, 4}).value()};
      std::vector<TensorType> inputs(model->inputs().size(), right);
      inputs.front().dtype = wrong;
      EXPECT_EQ(std::string(model->Check(inputs).status().message()),
                "input \"x\": dtype: " + v1::DataType_Name(ToProtocol(wrong)) +
                    ", wanted FLOAT32 or FLOAT64")
          << config;
      // Without a list, what the operation takes.
      if (wrong == DType::kFloat16) continue;
      EXPECT_THAT(std::string(MustCreate(config, {})->Check(inputs).status().message()),
                  HasSubstr("input \"x\": dtype: "));
    }
  }
}

TEST(DataTypeTest, ConvertsBothWays) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const absl::StatusOr<DType> back = FromProtocol(ToProtocol(dtype));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, dtype);
  }
}

TEST(DataTypeTest, RefusesUnknownValues) {
  EXPECT_EQ(FromProtocol(v1::DATA_TYPE_UNSPECIFIED).status(),
            absl::InvalidArgumentError("dtype: missing"));
  EXPECT_EQ(FromProtocol(static_cast<v1::DataType>(99)).status(),
            absl::InvalidArgumentError("dtype: 99 is unknown"));
}

}  // namespace
}  // namespace normd::testing
