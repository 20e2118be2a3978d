// The fused layer through the service: two named inputs, their errors, and the precision.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/reference.h"
#include "operations/kernel_program.h"
#include "tests/server/rpc/test_server.h"
#include "tests/server/rpc/unary_call.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using testing::MakeRequest;
using testing::Normalize;
using testing::TestServer;

constexpr std::int64_t kFeatures = 512;
constexpr char kFusedLinear[] = "fused_linear_512";

v1::NormalizeRequest MakeLinearRequest(std::int64_t samples, std::uint64_t seed = 1) {
  v1::NormalizeRequest request = MakeRequest(kFusedLinear, {samples, kFeatures}, seed);
  request.mutable_inputs(0)->set_name("x");
  *request.add_inputs() = MakeRequest(kFusedLinear, {samples, kFeatures}, seed + 1).inputs(0);
  request.mutable_inputs(1)->set_name("y");
  return request;
}

std::vector<float> Floats(const std::string& data) {
  std::vector<float> values(data.size() / sizeof(float));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

void ExpectRight(TestServer& server, const v1::Tensor& x_tensor, const v1::Tensor& y_tensor,
                 const v1::NormalizeResponse& response) {
  ASSERT_EQ(response.outputs_size(), 1);
  const std::vector<float> x = Floats(x_tensor.data());
  const std::vector<float> y = Floats(y_tensor.data());
  const std::vector<float> out = Floats(response.outputs(0).data());
  const auto model = *server.registry().Find(kFusedLinear, 0);
  std::vector<double> expected(y.size());
  const norm::Status status = norm::LinearNormReference(
      std::get<LinearNormProgram>(model->program()).spec,
      std::get<LinearNormProgram>(model->program()).params,
      {x.data(), y.data(), nullptr, static_cast<std::int64_t>(x.size()) / kFeatures},
      expected.data());
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(out.size(), expected.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(out[i]), expected[i], 1e-4) << i;
  }
}

TEST(LinearServiceTest, ComputesTheReferencesResultWithInputsInAnyOrder) {
  TestServer server;
  v1::NormalizeRequest request = MakeLinearRequest(3);
  v1::NormalizeResponse response;
  grpc::Status status = Normalize(server, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectRight(server, request.inputs(0), request.inputs(1), response);

  request.mutable_inputs()->SwapElements(0, 1);
  v1::NormalizeResponse swapped;
  status = Normalize(server, request, &swapped);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(swapped.outputs(0).data(), response.outputs(0).data());
}

TEST(LinearServiceTest, RequestsOfDifferentSizesShareABatch) {
  TestServer server;
  server.gate().Close();
  testing::AsyncCall first(server.stub(), MakeLinearRequest(1, 5));
  server.gate().WaitForStalled(1);
  testing::AsyncCall second(server.stub(), MakeLinearRequest(2, 7));
  testing::AsyncCall third(server.stub(), MakeLinearRequest(5, 9));
  while (server.queue().waiting_requests() < 2) std::this_thread::yield();
  server.gate().Open();
  for (testing::AsyncCall* call : {&second, &third}) {
    ASSERT_TRUE(call->Wait().ok()) << call->Wait().error_message();
    EXPECT_EQ(call->response.batch().requests(), 2);
    ExpectRight(server, call->request.inputs(0), call->request.inputs(1), call->response);
  }
}

TEST(LinearServiceTest, TakesEveryPrecisionAndComputesAtLeastThat) {
  TestServer server;
  for (int precision = 0; precision <= v1::Precision_MAX; ++precision) {
    v1::NormalizeRequest request = MakeLinearRequest(2);
    request.set_precision(static_cast<v1::Precision>(precision));
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(server, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ExpectRight(server, request.inputs(0), request.inputs(1), response);
  }
}

TEST(LinearServiceTest, RefusesBadInputsByName) {
  using Change = std::function<void(v1::NormalizeRequest&)>;
  const std::pair<const char*, Change> cases[] = {
      {"inputs: \"y\" is missing, wanted \"x\" and \"y\"",
       [](auto& r) { r.mutable_inputs()->RemoveLast(); }},
      {"inputs[0].name: \"\", wanted \"x\" and \"y\"",
       [](auto& r) { r.mutable_inputs(0)->clear_name(); }},
      {"inputs[1].name: \"z\", wanted \"x\" and \"y\"",
       [](auto& r) { r.mutable_inputs(1)->set_name("z"); }},
      {"inputs[1].name: \"x\" twice", [](auto& r) { r.mutable_inputs(1)->set_name("x"); }},
      {"input \"y\": shape: [3, 512], wanted [2, 512] for \"x\" of [2, 512]",
       [](auto& r) { r.mutable_inputs(1)->set_shape(0, 3); }},
      {"input \"x\": shape: [2, 511], wanted [*, 512]",
       [](auto& r) { r.mutable_inputs(0)->set_shape(1, 511); }},
      {"input \"y\": dtype: float16, wanted float32 as of \"x\"",
       [](auto& r) { r.mutable_inputs(1)->set_dtype(v1::FLOAT16); }},
      {"input \"y\": dtype: missing", [](auto& r) { r.mutable_inputs(1)->clear_dtype(); }},
      {"input \"y\": data: 4092 bytes, wanted 4096",
       [](auto& r) { r.mutable_inputs(1)->mutable_data()->resize(4092); }},
      {"dtype: FLOAT64, wanted FLOAT32, FLOAT16 or BFLOAT16",
       [](auto& r) {
         for (auto& input : *r.mutable_inputs()) input.set_dtype(v1::FLOAT64);
       }},
      {"precision: 77, wanted PRECISION_FLOAT32",
       [](auto& r) { r.set_precision(static_cast<v1::Precision>(77)); }}};
  TestServer server;
  for (const auto& [message, change] : cases) {
    v1::NormalizeRequest request = MakeLinearRequest(2);
    change(request);
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(server, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  }
}

TEST(LinearServiceTest, ANormTakesNoPrecision) {
  TestServer server;
  v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 4});
  request.set_precision(v1::PRECISION_TF32);
  v1::NormalizeResponse response;
  const grpc::Status status = Normalize(server, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              HasSubstr("precision: PRECISION_TF32, wanted none: model \"instance_norm_64\""));
}

}  // namespace
}  // namespace normd
