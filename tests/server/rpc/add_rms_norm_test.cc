// RMSNorm with a residual through the service: two inputs and two outputs, in one message and in
// streams.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/reference.h"
#include "tests/server/rpc/judged_outputs.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;

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
  v1::NormalizeRequest request = MakeRequest(model, shape, {"x", "residual"});
  ConvertInputs(request, dtype);
  return request;
}

void AddMatrices(TestServer& server) {
  v1::ModelConfig config;
  config.mutable_add_rms_norm()->add_normalized_shape(4);
  config.mutable_add_rms_norm()->add_normalized_shape(8);
  config.mutable_add_rms_norm()->set_affine(false);
  AddModel(server, kMatrices, config);
}

v1::NormalizeResponse TwoOutputs(TestServer& server, const v1::NormalizeRequest& request) {
  const v1::NormalizeResponse response = Normalized(server, request);
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
    EXPECT_EQ(wanted.outputs(1).name(), "residual_out");
    ExpectSumAndNorm(server, request, wanted);
    for (const std::size_t most : {300, 5000, 50'000}) {
      SCOPED_TRACE(absl::StrCat(request.model(), ", chunks of up to ", most));
      const StreamResult result =
          NormalizeInChunks(server.stub(), request, [&] { return random() % most + 1; });
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      ExpectStreamed(result, wanted);
      EXPECT_EQ(result.header->samples(), request.inputs(0).shape(0));
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
}  // namespace normd::testing
