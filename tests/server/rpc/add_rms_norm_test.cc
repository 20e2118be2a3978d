// RMSNorm with a residual through the service: two inputs and two outputs, in one message and in
// streams.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/tensor/stream_order.h"
#include "kernels/reference.h"
#include "tests/server/rpc/judged_outputs.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/temp_repository.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using testing::CopyOf;
using ::testing::ElementsAre;
using testing::JudgeOutputs;
using testing::MakeRequest;
using testing::NormalizeInChunks;
using testing::SpecOf;
using testing::StreamResult;
using testing::TestServer;
using testing::TestServerOptions;

constexpr char kAddRmsNorm[] = "add_rms_norm_4096";
constexpr char kMatrices[] = "matrices";  // Over 4 x 8; a sample is not the last dimension.

TestServerOptions SmallPieces() {
  TestServerOptions options;
  options.cpu_lanes = 2;
  options.accept.stream = {.window_bytes = 512 << 10, .piece_bytes = 40'000};
  return options;
}

v1::NormalizeRequest MakeAdd(const std::string& model, const std::vector<std::int64_t>& shape,
                             v1::DataType dtype = v1::FLOAT32) {
  v1::NormalizeRequest request = MakeRequest(model, shape, 1);
  request.mutable_inputs(0)->set_name("x");
  *request.add_inputs() = MakeRequest(model, shape, 2).inputs(0);
  request.mutable_inputs(1)->set_name("residual");
  for (v1::Tensor& input : *request.mutable_inputs()) {
    if (dtype == v1::FLOAT32) continue;
    const auto kernel = static_cast<norm::DType>(dtype);
    const auto count = static_cast<std::int64_t>(input.data().size() / sizeof(float));
    std::string data(static_cast<std::size_t>(count) * norm::SizeOf(kernel), '\0');
    for (std::int64_t i = 0; i < count; ++i) {
      norm::StoreElement(kernel, data.data(), i,
                         norm::LoadElement(norm::DType::kFloat32, input.data().data(), i));
    }
    input.set_dtype(dtype);
    input.set_data(std::move(data));
  }
  return request;
}

void AddMatrices(TestServer& server) {
  v1::ModelConfig config;
  config.mutable_add_rms_norm()->add_normalized_shape(4);
  config.mutable_add_rms_norm()->add_normalized_shape(8);
  config.mutable_add_rms_norm()->set_affine(false);
  test::WriteModel(server.repository(), kMatrices, config, {});
  grpc::ClientContext context;
  v1::LoadModelRequest request;
  request.set_model(kMatrices);
  v1::LoadModelResponse response;
  const grpc::Status status = server.stub().LoadModel(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

v1::NormalizeResponse TwoOutputs(TestServer& server, const v1::NormalizeRequest& request) {
  grpc::ClientContext context;
  v1::NormalizeResponse response;
  const grpc::Status status = server.stub().Normalize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.outputs_size(), 2);
  return response;
}

void ExpectSumAndNorm(TestServer& server, const v1::NormalizeRequest& request,
                      const v1::NormalizeResponse& response) {
  const auto expected = JudgeOutputs(server, request, response);
  ASSERT_TRUE(expected.ok()) << expected.status();
  // The sum is exact.
  const v1::Tensor& sum = response.outputs(1);
  const std::vector<double>& sums = expected->at(1).elements;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(norm::LoadElement(SpecOf(sum).dtype, sum.data().data(), static_cast<std::int64_t>(i)),
              sums[i])
        << i;
  }
}

TEST(AddRmsNormTest, AnswersWithBothOutputsByName) {
  TestServer server;
  for (const v1::DataType dtype : {v1::FLOAT32, v1::FLOAT64, v1::FLOAT16, v1::BFLOAT16}) {
    SCOPED_TRACE(v1::DataType_Name(dtype));
    v1::NormalizeRequest request = MakeAdd(kAddRmsNorm, {2, 3, 4096}, dtype);
    const v1::NormalizeResponse response = TwoOutputs(server, request);
    EXPECT_EQ(response.outputs(0).name(), "y");
    EXPECT_EQ(response.outputs(1).name(), "residual_out");
    for (const v1::Tensor& output : response.outputs()) {
      EXPECT_THAT(output.shape(), ElementsAre(2, 3, 4096));
      EXPECT_EQ(output.dtype(), dtype);
    }
    ExpectSumAndNorm(server, request, response);
    request.mutable_inputs()->SwapElements(0, 1);
    const v1::NormalizeResponse swapped = TwoOutputs(server, request);
    EXPECT_EQ(swapped.outputs(0).data(), response.outputs(0).data());
  }
}

TEST(AddRmsNormTest, EveryChunkingOfAStreamGivesTheBitsOfTheUnaryCall) {
  TestServer server(SmallPieces());
  AddMatrices(server);
  std::mt19937_64 random(norm::testing::TestSeed());
  for (const v1::NormalizeRequest& request :
       {MakeAdd(kAddRmsNorm, {9, 4096}), MakeAdd(kAddRmsNorm, {9, 4096}, v1::BFLOAT16),
        MakeAdd(kMatrices, {1009, 4, 8}), MakeAdd(kMatrices, {1009, 4, 8}, v1::FLOAT64)}) {
    const v1::NormalizeResponse wanted = TwoOutputs(server, request);
    ExpectSumAndNorm(server, request, wanted);
    for (const std::size_t most : {300, 5000, 50'000}) {
      SCOPED_TRACE(absl::StrCat(request.model(), ", chunks of up to ", most));
      const StreamResult result =
          NormalizeInChunks(server.stub(), request, [&] { return random() % most + 1; });
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      ASSERT_TRUE(result.header.has_value() && result.trailer.has_value());
      EXPECT_EQ(result.header->samples(), request.inputs(0).shape(0));
      std::vector<client::TensorSpec> specs;
      for (const v1::Tensor& output : result.header->outputs()) specs.push_back(SpecOf(output));
      ASSERT_EQ(specs.size(), 2U);
      EXPECT_EQ(specs[1].name, "residual_out");
      const auto outputs = client::SplitStream(
          specs,
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(result.data.data()),
                              result.data.size()),
          result.header->samples());
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      for (int i = 0; i < 2; ++i) {
        const client::Tensor whole = CopyOf(wanted.outputs(i));
        EXPECT_TRUE(outputs->at(static_cast<std::size_t>(i)).bytes() == whole.bytes()) << i;
      }
      EXPECT_GT(result.trailer->pieces(), 1);
    }
  }
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(AddRmsNormTest, NoSamplesGiveNoneBothWays) {
  TestServer server;
  const v1::NormalizeRequest request = MakeAdd(kAddRmsNorm, {0, 4096});
  const v1::NormalizeResponse response = TwoOutputs(server, request);
  for (const v1::Tensor& output : response.outputs()) {
    EXPECT_THAT(output.shape(), ElementsAre(0, 4096));
    EXPECT_EQ(output.data(), "");
  }
  const StreamResult result =
      NormalizeInChunks(server.stub(), request, [] { return std::size_t{1}; });
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.data, "");
  EXPECT_EQ(result.header->outputs_size(), 2);
}

}  // namespace
}  // namespace normd
