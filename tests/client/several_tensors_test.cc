// Calls with any number of named inputs and outputs, each of its own type and shape.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/output_specs.h"
#include "client/tensor/random.h"
#include "client/tensor/stream_order.h"
#include "tests/support/fake_norm_service.h"

namespace normd::client {
namespace {

using ::testing::HasSubstr;
using Pattern = std::initializer_list<std::int64_t>;

Tensor Random(norm::DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  return RandomTensor(dtype, Shape::Create(shape).value(), -1, 1, seed).value();
}

// Gives the inputs back in the opposite order, each under its name and "_out".
std::vector<v1::Tensor> Turned(const v1::NormalizeRequest& request) {
  std::vector<v1::Tensor> outputs(request.inputs().rbegin(), request.inputs().rend());
  for (v1::Tensor& output : outputs) output.set_name(output.name() + "_out");
  return outputs;
}

class SeveralTensorsTest : public ::testing::Test {
 protected:
  SeveralTensorsTest() : client_(Client::Create(server_.target()).value()) {
    server_.AddModel("turn", Turned);
  }

  // Five samples each, of which one has no elements.
  const std::vector<Tensor> inputs_ = {
      Random(norm::DType::kFloat32, {5, 7}, 1), Random(norm::DType::kFloat64, {5, 3}, 2),
      Random(norm::DType::kFloat16, {5, 0}, 3), Random(norm::DType::kBFloat16, {5, 300}, 4)};
  const std::vector<std::string> names_ = {"x", "residual", "nothing", "gate"};

  void ExpectTurned(const std::vector<TensorSpec>& specs, const std::vector<Tensor>& outputs) {
    ASSERT_EQ(outputs.size(), inputs_.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::size_t from = inputs_.size() - 1 - i;
      EXPECT_EQ(specs[i].name, names_[from] + "_out");
      EXPECT_EQ(specs[i].dtype, inputs_[from].dtype());
      EXPECT_EQ(specs[i].shape, inputs_[from].shape());
      EXPECT_TRUE(outputs[i].bytes() == inputs_[from].bytes()) << specs[i].name;
    }
  }

  // Streams the five samples of `inputs`, and adds what comes to `received`.
  absl::StatusOr<StreamResult> Stream(const StreamRequest& request,
                                      const std::vector<Tensor>& inputs,
                                      std::vector<std::byte>& received) {
    const Tensor stream = JoinStream(inputs, 5).value();
    std::size_t read = 0;
    return client_->NormalizeStream(
        request,
        [&](absl::Span<std::byte> out) {
          std::memcpy(out.data(), stream.bytes().data() + read, out.size());
          read += out.size();
          return absl::OkStatus();
        },
        [&](absl::Span<const std::byte> bytes) {
          received.insert(received.end(), bytes.begin(), bytes.end());
          return absl::OkStatus();
        });
  }
  // The error of a stream that is refused before its bytes.
  absl::Status Refusal(const StreamRequest& request) {
    std::vector<std::byte> unused;
    return Stream(request, inputs_, unused).status();
  }

  test::FakeNormService server_;
  const std::unique_ptr<Client> client_;
};

TEST_F(SeveralTensorsTest, ACallTakesAndGivesThemByName) {
  NormalizeRequest request;
  request.model = "turn";
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    request.inputs.push_back(inputs_[i].named(names_[i]));
  }
  const absl::StatusOr<NormalizeResponse> response = client_->Normalize(request);
  ASSERT_TRUE(response.ok()) << response.status();
  std::vector<TensorSpec> specs;
  std::vector<Tensor> outputs;
  for (const OutputTensor& output : response->outputs()) {
    specs.push_back(output.spec());
    outputs.push_back(output.ToTensor().value());
  }
  ExpectTurned(specs, outputs);
}

TEST_F(SeveralTensorsTest, AStreamCarriesASampleOfEachInTurn) {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < inputs_.size(); ++i) specs.push_back(inputs_[i].spec(names_[i]));
  for (const std::int64_t chunk_bytes : {1, 13, 1000, 1 << 20}) {
    StreamRequest request;
    request.model = "turn";
    request.inputs = specs;
    request.chunk_bytes = chunk_bytes;
    std::vector<std::byte> received;
    const absl::StatusOr<StreamResult> result = Stream(request, inputs_, received);
    ASSERT_TRUE(result.ok()) << result.status();
    const absl::StatusOr<std::vector<Tensor>> outputs =
        SplitStream(result->outputs, received, result->samples);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    ExpectTurned(result->outputs, *outputs);
  }
}

// The number that the server tells decides what a sample is, and must divide every tensor.
TEST_F(SeveralTensorsTest, ASampleOfAStreamIsWhatTheServersHeaderSays) {
  const std::vector<Tensor> inputs = {Random(norm::DType::kFloat32, {5, 2, 3}, 1),
                                      Random(norm::DType::kFloat16, {5, 2, 4}, 2)};
  const auto run = [&](std::int64_t told, std::vector<std::byte>& received) {
    server_.TellSamples(told);
    StreamRequest request;
    request.model = "turn";
    request.inputs = {inputs[0].spec("x"), inputs[1].spec("g")};
    request.chunk_bytes = 11;
    return Stream(request, inputs, received);
  };
  std::vector<std::byte> received;
  const absl::StatusOr<StreamResult> result = run(5, received);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->samples, 5);
  const auto outputs = SplitStream(result->outputs, received, result->samples);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_TRUE((*outputs)[0].bytes() == inputs[1].bytes());
  EXPECT_TRUE((*outputs)[1].bytes() == inputs[0].bytes());
  for (const std::int64_t wrong : {-1, 4, 15, 31}) {
    const absl::Status status = run(wrong, received).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << wrong;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("wanted a divisor of each tensor's elements"));
  }
}

TEST_F(SeveralTensorsTest, AStreamRefusesInputsOfOtherSamplesAndNoInputs) {
  StreamRequest request;
  request.model = "turn";
  EXPECT_EQ(Refusal(request).message(), "inputs: none, wanted at least one");
  request.inputs = {inputs_[0].spec("x"), inputs_[1].spec("residual"),
                    Random(norm::DType::kFloat32, {4, 3}, 1).spec("gate")};
  EXPECT_EQ(Refusal(request).message(),
            "gate: shape [4, 3], wanted the samples of x, which is [5, 7]");
}

TEST_F(SeveralTensorsTest, AStreamWhoseServerNamesAnUnknownTypeIsRefused) {
  server_.AddModel("odd", [](const v1::NormalizeRequest& request) {
    std::vector<v1::Tensor> outputs = Turned(request);
    outputs.back().set_dtype(static_cast<v1::DataType>(99));
    return outputs;
  });
  StreamRequest request;
  request.model = "odd";
  request.inputs = {inputs_[0].spec("x")};
  std::vector<std::byte> received;
  const absl::Status status = Stream(request, {inputs_[0]}, received).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("an output of another type or shape"));
}

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
