// The fused layer through the service: two named inputs, their errors, and the precision.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/reference.h"
#include "operations/kernel_program.h"
#include "tests/server/rpc/judged_outputs.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kFeatures = 512;
constexpr char kFusedLinear[] = "fused_linear_512";

v1::NormalizeRequest MakeLinearRequest(std::int64_t samples, std::uint64_t seed = 1) {
  return MakeRequest(kFusedLinear, {samples, kFeatures}, {"x", "y"}, seed);
}

TEST(LinearServiceTest, ComputesTheReferencesResultWithInputsInAnyOrder) {
  TestServer server;
  v1::NormalizeRequest request = MakeLinearRequest(3);
  const v1::NormalizeResponse response = Normalized(server, request);
  ExpectRight(server, request, response);
  request.mutable_inputs()->SwapElements(0, 1);
  EXPECT_EQ(Normalized(server, request).outputs(0).data(), response.outputs(0).data());
}

TEST(LinearServiceTest, RequestsOfDifferentSizesShareABatch) {
  TestServer server;
  StalledCall first(server, MakeLinearRequest(1, 5));
  AsyncCall second(server.stub(), MakeLinearRequest(2, 7));
  AsyncCall third(server.stub(), MakeLinearRequest(5, 9));
  while (server.queue().waiting_requests() < 2) std::this_thread::yield();
  server.gate().Open();
  for (AsyncCall* call : {&second, &third}) {
    ASSERT_TRUE(call->Wait().ok()) << call->Wait().error_message();
    EXPECT_EQ(call->response.batch().requests(), 2);
    ExpectRight(server, call->request, call->response);
  }
}

TEST(LinearServiceTest, TakesEveryPrecisionAndComputesAtLeastThat) {
  TestServer server;
  for (int precision = 0; precision <= v1::Precision_MAX; ++precision) {
    v1::NormalizeRequest request = MakeLinearRequest(2);
    request.set_precision(static_cast<v1::Precision>(precision));
    ExpectRight(server, request, Normalized(server, request));
  }
}

// In a stream it is the sum that counts.
TEST(LinearServiceTest, NamesTheInputWhoseDataIsShort) {
  TestServer server;
  v1::NormalizeRequest request = MakeLinearRequest(2);
  request.mutable_inputs(1)->mutable_data()->resize(4092);
  const grpc::Status status = Normalize(server, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("input \"y\": data: 4092 bytes, wanted 4096"));
}

}  // namespace
}  // namespace normd::testing
