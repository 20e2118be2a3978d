// Outputs beside y through the service: statistics on request, quantized values with their scales;
// styles by index. In one message of either protocol and in streams.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "inference/grpc_service.grpc.pb.h"
#include "kernels/reference.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/judged_outputs.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

struct Case {
  std::string name;
  std::string config;
  std::vector<std::int64_t> shape;
  Names all;
  Names by_default = {""};
  bool residual = false;
  std::int64_t styles = 0;  // Above 0: style_index is an input.
};

std::vector<Case> Cases() {
  const Names moments = {"y", "mean", "rstd"};
  return {
      {"layer_norm", "layer_norm { normalized_shape: 256 affine: false }", {5, 7, 256}, moments},
      {"channels",
       "layer_norm { normalized_shape: 24 axes: 1 affine: false }",
       {6, 24, 5, 3},
       moments},
      {"axes_apart",
       "layer_norm { normalized_shape: [24, 3] axes: [1, 3] affine: false }",
       {6, 24, 5, 3},
       moments},
      {"group_norm", "group_norm { channels: 24 groups: 4 affine: false }", {6, 24, 5, 3}, moments},
      {"sum",
       "add_rms_norm { normalized_shape: 256 affine: false }",
       {35, 256},
       {"y", "residual_out", "rstd"},
       {"y", "residual_out"},
       true},
      {"rows_to_float8",
       "rms_norm { normalized_shape: 256 affine: false } "
       "quantization { dtype: FLOAT8_E4M3 scales: PER_ROW }",
       {5, 7, 256},
       {"y", "y_scale", "rstd"},
       {"y", "y_scale"}},
      {"blocks_to_int8",
       "add_rms_norm { normalized_shape: 300 affine: false } "
       "quantization { dtype: INT8 scales: PER_BLOCK }",
       {35, 300},
       {"y", "residual_out", "y_scale", "rstd"},
       {"y", "residual_out", "y_scale"},
       true},
      {"tensor_to_int8",
       "group_norm { channels: 24 groups: 4 affine: false } activation: SILU layout: CHANNELS_LAST "
       "quantization { dtype: INT8 scale: 0.03 }",
       {6, 5, 3, 24},
       moments},
      {"styles",
       "conditional_instance_norm { channels: 24 styles: 5 by_index: true }",
       {6, 24, 5, 3},
       moments,
       {""},
       false,
       5},
  };
}

void LoadCase(TestServer& server, const Case& one) {
  v1::ModelConfig config;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(one.config, &config));
  std::map<std::string, client::Tensor> parameters;
  if (one.styles > 0) {
    const Shape shape = *Shape::Create({one.styles, config.conditional_instance_norm().channels()});
    client::Tensor weight = *client::Tensor::Allocate(norm::DType::kFloat32, shape);
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      norm::StoreElement(weight.dtype(), weight.mutable_bytes().data(), i,
                         1 + 0.01 * static_cast<double>(i));
    }
    parameters["weight"] = weight;
  }
  AddModel(server, one.name, config, parameters);
}

v1::NormalizeRequest MakeRequestFor(const Case& one, const Names& outputs,
                                    v1::DataType dtype = v1::FLOAT32) {
  v1::NormalizeRequest request =
      MakeRequest(one.name, one.shape, one.residual ? Names{"x", "residual"} : Names{"x"});
  ConvertInputs(request, dtype);
  if (one.styles > 0) {
    v1::Tensor& index = *request.add_inputs();
    index.set_name("style_index");
    index.set_dtype(v1::INT64);
    index.add_shape(one.shape[0]);
    std::string data(8 * static_cast<std::size_t>(one.shape[0]), '\0');
    for (std::int64_t i = 0; i < one.shape[0]; ++i) {
      norm::StoreElement(norm::DType::kInt64, data.data(), i,
                         static_cast<double>((3 * i + 1) % one.styles));
    }
    index.set_data(std::move(data));
  }
  for (const std::string& name : outputs) request.add_outputs()->set_name(name);
  return request;
}

Names NamesOf(const v1::NormalizeResponse& response) {
  Names names;
  for (const v1::Tensor& output : response.outputs()) names.push_back(output.name());
  return names;
}

class OutputsTest : public ::testing::Test {
 protected:
  static TestServerOptions SmallPieces() {
    TestServerOptions options;
    options.accept.stream = {.window_bytes = 512 << 10, .piece_bytes = 4'000};
    return options;
  }

  OutputsTest() {
    for (const Case& one : Cases()) LoadCase(server_, one);
  }

  TestServer server_{SmallPieces()};
};

TEST_F(OutputsTest, ComeUnaskedOrWhereTheRequestNamesThem) {
  for (const Case& one : Cases()) {
    for (const v1::DataType dtype : {v1::FLOAT32, v1::FLOAT64, v1::FLOAT16, v1::BFLOAT16}) {
      SCOPED_TRACE(absl::StrCat(one.name, " ", v1::DataType_Name(dtype)));
      const v1::NormalizeRequest unasked = MakeRequestFor(one, {}, dtype);
      const v1::NormalizeResponse plain = Normalized(server_, unasked);
      EXPECT_EQ(NamesOf(plain), one.by_default);
      ExpectRight(server_, unasked, plain);
      const v1::NormalizeRequest asked = MakeRequestFor(one, one.all, dtype);
      const v1::NormalizeResponse whole = Normalized(server_, asked);
      EXPECT_EQ(NamesOf(whole), one.all);
      ExpectRight(server_, asked, whole);
      EXPECT_EQ(whole.outputs(0).data(), plain.outputs(0).data());
      const v1::DataType statistics = dtype == v1::FLOAT64 ? v1::FLOAT64 : v1::FLOAT32;
      EXPECT_EQ(whole.outputs(whole.outputs_size() - 1).dtype(), statistics);
      // One alone, in whatever order others would come.
      const v1::NormalizeRequest last = MakeRequestFor(one, {one.all.back()}, dtype);
      const v1::NormalizeResponse alone = Normalized(server_, last);
      ASSERT_EQ(NamesOf(alone), Names{one.all.back()});
      EXPECT_EQ(alone.outputs(0).data(), whole.outputs(whole.outputs_size() - 1).data());
      Names reversed(one.all.rbegin(), one.all.rend());
      EXPECT_EQ(NamesOf(Normalized(server_, MakeRequestFor(one, reversed, dtype))), one.all);
    }
  }
}

TEST_F(OutputsTest, EveryChunkingOfAStreamGivesTheBitsOfTheUnaryCall) {
  std::mt19937_64 random(norm::testing::TestSeed());
  for (const Case& one : Cases()) {
    for (const Names& outputs : {Names(), one.all, Names{one.all.back()}}) {
      const v1::NormalizeRequest request = MakeRequestFor(one, outputs, v1::BFLOAT16);
      const v1::NormalizeResponse wanted = Normalized(server_, request);
      for (const std::size_t most : {std::size_t{30}, std::size_t{5000}}) {
        SCOPED_TRACE(absl::StrCat(one.name, ", ", outputs.size(), " outputs, chunks of ", most));
        // The outer dimensions of rows are samples; those of images are not.
        v1::NormalizeRequest sent = request;
        if (one.shape.size() == 3) {
          for (v1::Tensor& input : *sent.mutable_inputs()) {
            input.clear_shape();
            input.add_shape(one.shape[0] * one.shape[1]);
            input.add_shape(one.shape[2]);
          }
        }
        const StreamResult result =
            NormalizeInChunks(server_.stub(), sent, [&] { return random() % most + 1; });
        ASSERT_TRUE(result.status.ok()) << result.status.error_message();
        EXPECT_GT(result.trailer->pieces(), 1);
        EXPECT_EQ(result.trailer->bytes(), static_cast<std::int64_t>(result.data.size()));
        ExpectStreamed(result, wanted);
      }
    }
  }
  server_.WaitIdle();
  EXPECT_EQ(server_.Metric("normd_inflight_bytes"), 0);
}

Case CaseOf(const std::string& name) {
  const std::vector<Case> cases = Cases();
  return *std::find_if(cases.begin(), cases.end(),
                       [&](const Case& one) { return one.name == name; });
}

TEST_F(OutputsTest, AStreamOfAxesApartIsCutBetweenSamplesAlone) {
  Case one = CaseOf("axes_apart");
  one.shape = {7, 24, 5, 3};  // Samples of 1440 bytes, two of which fit a piece.
  const v1::NormalizeRequest request = MakeRequestFor(one, {});
  const StreamResult result =
      NormalizeInChunks(server_.stub(), request, [] { return std::size_t{700}; });
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.trailer->pieces(), 4);
  EXPECT_TRUE(result.data == Normalized(server_, request).outputs(0).data());
}

TEST_F(OutputsTest, ASampleOfAxesApartThatTheWindowCannotHoldIsRefusedWithTheWindowItNeeds) {
  Case one = CaseOf("axes_apart");
  one.shape = {2, 24, 3000, 3};
  const v1::NormalizeRequest request = MakeRequestFor(one, {});
  const auto run = [&](TestServer& server) {
    return NormalizeInChunks(server.stub(), request, [] { return std::size_t{50'000}; });
  };
  const grpc::Status refused = run(server_).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const std::string before =
      "shape: a sample of [2, 24, 3000, 3] has 864000 bytes and needs a stream window of ";
  const std::string message = refused.error_message();
  ASSERT_THAT(message, HasSubstr(before));
  TestServerOptions options;
  options.accept.stream.window_bytes = std::stoll(message.substr(before.size()));
  options.accept.stream.piece_bytes = 4'000;
  TestServer server(options);
  LoadCase(server, one);
  const StreamResult result = run(server);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.trailer->pieces(), 2);
  EXPECT_TRUE(result.data == Normalized(server, request).outputs(0).data());
}

// A batch of requests that ask for different outputs: each gets what it asked for, with the bits
// that it gets alone.
TEST_F(OutputsTest, RequestsThatAskForDifferentOutputsShareABatch) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    const std::vector<Names> asked = {{}, one.all, {one.all.back()}};
    std::vector<v1::NormalizeResponse> alone;
    for (const Names& names : asked)
      alone.push_back(Normalized(server_, MakeRequestFor(one, names)));
    server_.gate().Close();
    std::vector<std::unique_ptr<AsyncCall>> calls;
    // The first stands before the gate; those that wait meanwhile become one batch.
    calls.push_back(std::make_unique<AsyncCall>(server_.stub(), MakeRequestFor(one, {})));
    server_.gate().WaitForStalled(1);
    for (const Names& names : asked) {
      calls.push_back(std::make_unique<AsyncCall>(server_.stub(), MakeRequestFor(one, names)));
    }
    WaitUntil([&] { return server_.queue().waiting_requests() >= 3; });
    server_.gate().Open();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(calls[i]->Wait().ok()) << calls[i]->Wait().error_message();
      if (i == 0) continue;
      EXPECT_EQ(calls[i]->response.batch().requests(), 3);
      const v1::NormalizeResponse& wanted = alone[i - 1];
      ASSERT_EQ(NamesOf(calls[i]->response), NamesOf(wanted));
      for (int k = 0; k < wanted.outputs_size(); ++k) {
        EXPECT_EQ(calls[i]->response.outputs(k).data(), wanted.outputs(k).data()) << k;
      }
    }
  }
}

TEST_F(OutputsTest, TheOpenInferenceProtocolHasThemToo) {
  for (const Case& one : Cases()) {
    for (const Names& outputs : {Names(), one.all, Names{one.all.back()}}) {
      SCOPED_TRACE(absl::StrCat(one.name, ", ", outputs.size(), " outputs"));
      const v1::NormalizeRequest request = MakeRequestFor(one, outputs);
      const v1::NormalizeResponse wanted = Normalized(server_, request);
      inference::ModelInferResponse response;
      const grpc::Status status = Infer(server_, ToInfer(request), &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_EQ(response.outputs_size(), wanted.outputs_size());
      for (int k = 0; k < wanted.outputs_size(); ++k) {
        const v1::DataType dtype = wanted.outputs(k).dtype();
        EXPECT_EQ(response.outputs(k).datatype(), dtype == v1::INT8          ? "INT8"
                                                  : dtype == v1::FLOAT8_E4M3 ? "UINT8"
                                                                             : "FP32");
        EXPECT_EQ(response.raw_output_contents(k), wanted.outputs(k).data());
        EXPECT_EQ(response.outputs(k).name(),
                  outputs.empty() && wanted.outputs_size() == 1 ? "y" : wanted.outputs(k).name());
      }
    }
  }
}

TEST_F(OutputsTest, IndexesMayComeAsContents) {
  const Case one = Cases().back();
  const v1::NormalizeRequest request = MakeRequestFor(one, {});
  inference::ModelInferRequest infer = ToInfer(request);
  infer.clear_raw_input_contents();
  const v1::Tensor& x = request.inputs(0);
  for (std::size_t i = 0; i < x.data().size() / sizeof(float); ++i) {
    infer.mutable_inputs(0)->mutable_contents()->add_fp32_contents(static_cast<float>(
        norm::LoadElement(norm::DType::kFloat32, x.data().data(), static_cast<std::int64_t>(i))));
  }
  for (std::int64_t i = 0; i < one.shape[0]; ++i) {
    infer.mutable_inputs(1)->mutable_contents()->add_int64_contents(static_cast<std::int64_t>(
        norm::LoadElement(norm::DType::kInt64, request.inputs(1).data().data(), i)));
  }
  inference::ModelInferResponse response;
  ASSERT_TRUE(Infer(server_, infer, &response).ok());
  EXPECT_EQ(response.raw_output_contents(0), Normalized(server_, request).outputs(0).data());
  infer.mutable_inputs(1)->mutable_contents()->set_int64_contents(2, -7);
  EXPECT_EQ(Infer(server_, infer).error_message(),
            "input \"style_index\": data[2]: -7, wanted 0 to 4");
  for (int i = 0; i < 70'000; ++i)
    infer.mutable_inputs(1)->mutable_contents()->add_int64_contents(1);
  EXPECT_THAT(Infer(server_, infer).error_message(),
              HasSubstr("inputs[1].contents: more than 65536 in int64_contents"));
}

// What came before it is answered; nothing of its own piece is.
TEST_F(OutputsTest, AStreamEndsAtAnIndexThatTheTableDoesNotHave) {
  const Case one = Cases().back();
  v1::NormalizeRequest request = MakeRequestFor(one, {});
  norm::StoreElement(norm::DType::kInt64, request.mutable_inputs(1)->mutable_data()->data(), 4, 5);
  const StreamResult result =
      NormalizeInChunks(server_.stub(), request, [] { return std::size_t{700}; });
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(result.status.error_message(), "input \"style_index\": data[4]: 5, wanted 0 to 4");
  EXPECT_LE(result.data.size(), 4 * request.inputs(0).data().size() / 6);
  server_.WaitIdle();
  EXPECT_EQ(server_.Metric("normd_inflight_bytes"), 0);
}

TEST_F(OutputsTest, GetModelTellsTypesAndWhatComesOnRequest) {
  const auto get = [&](const std::string& name) {
    grpc::ClientContext context;
    v1::GetModelRequest request;
    request.set_model(name);
    v1::GetModelResponse response;
    EXPECT_TRUE(server_.stub().GetModel(&context, request, &response).ok());
    return response.model();
  };
  const v1::ModelInfo rows = get("rows_to_float8");
  ASSERT_EQ(rows.outputs_size(), 3);
  EXPECT_EQ(rows.outputs(0).dtype(), v1::FLOAT8_E4M3);
  EXPECT_EQ(rows.outputs(1).name(), "y_scale");
  EXPECT_EQ(rows.outputs(1).dtype(), v1::FLOAT32);
  EXPECT_THAT(rows.outputs(1).shape(), ElementsAre(-2, 1));
  EXPECT_FALSE(rows.outputs(1).on_request());
  EXPECT_TRUE(rows.outputs(2).on_request());
  EXPECT_EQ(rows.outputs(2).dtype_of_float64(), v1::FLOAT64);
  EXPECT_THAT(get("blocks_to_int8").outputs(2).shape(), ElementsAre(-2, 3));
  const v1::ModelInfo styles = get("styles");
  EXPECT_EQ(styles.inputs(0).dtype(), v1::DATA_TYPE_UNSPECIFIED);
  EXPECT_EQ(styles.inputs(1).dtype(), v1::INT64);
  EXPECT_EQ(styles.inputs(1).values(), 5);
}

TEST_F(OutputsTest, MetadataTellsWhatComesUnaskedInTheProtocolsTypes) {
  const auto stub = inference::GRPCInferenceService::NewStub(server_.NewChannel());
  const auto get = [&](const std::string& name) {
    grpc::ClientContext context;
    inference::ModelMetadataRequest request;
    request.set_name(name);
    inference::ModelMetadataResponse response;
    EXPECT_TRUE(stub->ModelMetadata(&context, request, &response).ok());
    return response;
  };
  const inference::ModelMetadataResponse rows = get("rows_to_float8");
  ASSERT_EQ(rows.outputs_size(), 2);
  EXPECT_EQ(rows.outputs(0).datatype(), "UINT8");
  EXPECT_EQ(rows.outputs(1).datatype(), "FP32");
  EXPECT_EQ(get("styles").inputs(1).datatype(), "INT64");
  EXPECT_EQ(get("layer_norm").outputs_size(), 1);
  grpc::ClientContext context;
  inference::ModelConfigRequest request;
  request.set_name("layer_norm");
  inference::ModelConfigResponse response;
  ASSERT_TRUE(stub->ModelConfig(&context, request, &response).ok());
  EXPECT_EQ(response.config().output_size(), 1);
  EXPECT_EQ(response.config().parameters().at("outputs_on_request").string_value(), "mean, rstd");
}

}  // namespace
}  // namespace normd::testing
