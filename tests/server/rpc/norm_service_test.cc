#include "server/rpc/norm_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/retry_after.h"
#include "kernels/reference.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd {
namespace {

using ::testing::AllOf;
using testing::AsyncCall;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeRequest;
using ::testing::Not;
using testing::RawCall;
using testing::TestServer;
using testing::TestServerOptions;

constexpr char kNormalize[] = "/normd.v1.NormService/Normalize";

grpc::Status Normalize(TestServer& server, const v1::NormalizeRequest& request,
                       v1::NormalizeResponse* response = nullptr) {
  grpc::ClientContext context;
  v1::NormalizeResponse unused;
  return server.stub().Normalize(&context, request, response != nullptr ? response : &unused);
}

TEST(NormServiceTest, AnswersWithTheNormAndTheStagesAndTheBatch) {
  TestServer server;
  const v1::NormalizeRequest request = MakeRequest("group_norm_64_8", {2, 64, 5, 7});
  v1::NormalizeResponse response;
  const grpc::Status status = Normalize(server, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();

  EXPECT_EQ(response.model(), "group_norm_64_8");
  EXPECT_EQ(response.version(), 1);
  EXPECT_GT(response.stages().decode_ns(), 0);
  EXPECT_GT(response.stages().queue_ns(), 0);
  EXPECT_GT(response.stages().compute_ns(), 0);
  EXPECT_EQ(response.stages().copy_in_ns(), 0);
  EXPECT_EQ(response.batch().requests(), 1);
  EXPECT_EQ(response.batch().bytes(), 2 * 64 * 5 * 7 * 4);
  EXPECT_EQ(response.batch().lane(), "cpu:0");
  ASSERT_EQ(response.outputs_size(), 1);
  const v1::Tensor& output = response.outputs(0);
  EXPECT_EQ(output.dtype(), v1::FLOAT32);
  EXPECT_THAT(output.shape(), ElementsAre(2, 64, 5, 7));

  const auto model = server.registry().Find("group_norm_64_8", 0);
  ASSERT_TRUE(model.ok());
  const std::size_t elements = 2 * 64 * 5 * 7;
  ASSERT_EQ(output.data().size(), elements * sizeof(float));
  std::vector<double> expected(elements);
  std::vector<float> x(elements);
  std::memcpy(x.data(), request.inputs(0).data().data(), elements * sizeof(float));
  const auto& program = std::get<NormProgram>((*model)->program());
  ASSERT_TRUE(norm::NormalizeReference(program.Spec(norm::DType::kFloat32), program.params,
                                       {x.data(), nullptr, 2, 35}, expected.data())
                  .ok());
  for (std::size_t i = 0; i < elements; ++i) {
    float y = 0;
    std::memcpy(&y, output.data().data() + i * sizeof(float), sizeof(float));
    ASSERT_NEAR(y, expected[i], 1e-5) << i;
  }
}

TEST(NormServiceTest, AnswersAnEmptyTensorWithAnEmptyTensor) {
  TestServer server;
  v1::NormalizeResponse response;
  const grpc::Status status =
      Normalize(server, MakeRequest("instance_norm_64", {0, 64, 8, 8}), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(0, 64, 8, 8));
  EXPECT_THAT(response.outputs(0).data(), IsEmpty());
}

struct BadInput {
  std::string name;
  std::function<void(v1::NormalizeRequest&)> change;  // To a valid request, [2, 64, 4, 4].
  grpc::StatusCode code;
  std::vector<std::string> message;  // What it must contain.
};

void SetShape(v1::NormalizeRequest& request, const std::vector<std::int64_t>& shape) {
  request.mutable_inputs(0)->mutable_shape()->Assign(shape.begin(), shape.end());
}

constexpr std::int64_t kHuge = std::int64_t{1} << 62;
constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kNotFound = grpc::StatusCode::NOT_FOUND;

std::vector<BadInput> BadTensors() {
  auto shape = [](std::vector<std::int64_t> dims) {
    return [dims](v1::NormalizeRequest& r) { SetShape(r, dims); };
  };
  return {
      {"UnknownPriority",
       [](auto& r) { r.set_priority(static_cast<v1::Priority>(4)); },
       kInvalid,
       {"priority: 4, wanted from 0 to 3"}},
      {"NegativeQueueTimeout",
       [](auto& r) { r.set_queue_timeout_ns(-1); },
       kInvalid,
       {"queue_timeout_ns: -1, wanted 0 or more"}},
      {"RankZero", shape({}), kInvalid, {"shape: []", "at least 2"}},
      {"RankOne", shape({64}), kInvalid, {"shape: [64]", "at least 2"}},
      {"TooManyDimensions",
       shape(std::vector<std::int64_t>(17, 1)),
       kInvalid,
       {"shape", "most 16"}},
      {"NegativeDimension", shape({2, 64, -4, 4}), kInvalid, {"shape[2]: -4"}},
      {"ZeroDimension", shape({2, 64, 0, 4}), kInvalid, {"shape[2]: 0", "at least 1"}},
      {"ZeroChannels", shape({2, 0, 4, 4}), kInvalid, {"shape[1]: 0"}},
      {"HugeDimension", shape({kHuge, 64}), kInvalid, {"shape", "2^63 elements"}},
      {"HugeDimensions", shape({2, 64, kHuge, kHuge}), kInvalid, {"shape", "2^63"}},
      {"HugeBytes", shape({kHuge / 64, 64}), kInvalid, {"shape", "2^63 bytes"}},
      {"HugeDimensionBesideZero", shape({0, 64, kHuge, 4}), kInvalid, {"shape", "2^63"}},
      {"WrongChannels", shape({2, 63, 4, 4}), kInvalid, {"shape[1]: 63 channels", "wanted 64"}},
      {"TooFewBytes",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->mutable_data()->pop_back(); },
       kInvalid,
       {"data: 8191 bytes, wanted 8192", "[2, 64, 4, 4]", "float32"}},
      {"TooManyBytes",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->mutable_data()->append("x"); },
       kInvalid,
       {"data: 8193 bytes, wanted 8192"}},
      {"NoData",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->clear_data(); },
       kInvalid,
       {"data: 0 bytes, wanted 8192"}},
      {"DataOfAnEmptyTensor", shape({0, 64, 4, 4}), kInvalid, {"data: 8192 bytes, wanted 0"}},
      {"NoDtype",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->clear_dtype(); },
       kInvalid,
       {"dtype", "wanted FLOAT32"}},
      {"UnknownDtype",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->set_dtype(v1::DataType(99)); },
       kInvalid,
       {"dtype: 99", "wanted FLOAT32"}},
      {"DtypeTheModelRefuses",
       [](v1::NormalizeRequest& r) {
         r.set_model("group_norm_320_32_silu_last");
         r.mutable_inputs(0)->set_dtype(v1::FLOAT64);
       },
       kInvalid,
       {"dtype: FLOAT64", "FLOAT16"}},
  };
}

std::vector<BadInput> BadNames() {
  return {
      {"NoInput", [](v1::NormalizeRequest& r) { r.clear_inputs(); }, kInvalid, {"inputs: none"}},
      {"TwoInputsOfOneName",
       [](v1::NormalizeRequest& r) {
         r.mutable_inputs(0)->set_name("x");
         *r.add_inputs() = r.inputs(0);
       },
       kInvalid,
       {"inputs[1].name: \"x\" twice"}},
      {"ASecondInputThatTheModelDoesNotTake",
       [](v1::NormalizeRequest& r) {
         r.mutable_inputs(0)->set_name("x");
         r.add_inputs()->set_name("y");
       },
       kInvalid,
       {"inputs[1].name: \"y\", wanted \"x\""}},
      {"TwoInputsWithoutNames",
       [](v1::NormalizeRequest& r) { *r.add_inputs() = r.inputs(0); },
       kInvalid,
       {"inputs[0].name: \"\", wanted \"x\""}},
      {"ThreeInputs",
       [](v1::NormalizeRequest& r) {
         r.mutable_inputs(0)->set_name("x");
         r.add_inputs()->set_name("x");
         r.add_inputs()->set_name("z");
       },
       kInvalid,
       {"inputs[2].name: \"z\", wanted \"x\""}},
      {"MoreInputsThanAnyModelTakes",
       [](v1::NormalizeRequest& r) {
         for (int i = 0; i < 32; ++i) r.add_inputs();
       },
       kInvalid,
       {"inputs: more than 32, wanted at most 32"}},
      {"UnknownInput",
       [](v1::NormalizeRequest& r) { r.mutable_inputs(0)->set_name("q"); },
       kInvalid,
       {"inputs[0].name: \"q\", wanted \"x\""}},
      {"UnknownModel",
       [](v1::NormalizeRequest& r) { r.set_model("nothing"); },
       kNotFound,
       {"model: nothing"}},
      {"UnknownVersion", [](v1::NormalizeRequest& r) { r.set_version(7); }, kNotFound, {"7"}},
      {"NegativeVersion",
       [](v1::NormalizeRequest& r) { r.set_version(-1); },
       kInvalid,
       {"version: -1"}},
      {"NoModel", [](v1::NormalizeRequest& r) { r.clear_model(); }, kInvalid, {"model: \"\""}},
      {"ModelThatIsAPath",
       [](v1::NormalizeRequest& r) { r.set_model("../x"); },
       kInvalid,
       {"model: \"../x\"", "letters"}},
      {"ModelWithANewline",
       [](v1::NormalizeRequest& r) { r.set_model("a\nb"); },
       kInvalid,
       {"model: \"a\\nb\""}},
      {"LongModel",
       [](v1::NormalizeRequest& r) { r.set_model(std::string(5000, 'm')); },
       kInvalid,
       {"model: 5000 bytes", "at most 128"}},
  };
}

std::vector<BadInput> BadInputs() {
  std::vector<BadInput> all = BadTensors();
  for (BadInput& bad : BadNames()) all.push_back(std::move(bad));
  return all;
}

// One server for all of them: that it answers the last as the first is part of the promise.
TEST(NormServiceTest, RefusesEachBadInputWithItsErrorAndGoesOn) {
  TestServer server;
  for (const BadInput& bad : BadInputs()) {
    SCOPED_TRACE(bad.name);
    v1::NormalizeRequest request = MakeRequest("instance_norm_64", {2, 64, 4, 4});
    bad.change(request);
    const grpc::Status status = Normalize(server, request);
    EXPECT_EQ(status.error_code(), bad.code) << status.error_message();
    for (const std::string& part : bad.message) {
      EXPECT_THAT(status.error_message(), HasSubstr(part));
    }
    EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {2, 64, 4, 4})).ok());
  }
}

TEST(NormServiceTest, RefusesATruncatedMessageAtEveryOffset) {
  TestServer server;
  const auto channel = server.NewChannel();
  const std::string wire = MakeRequest("instance_norm_64", {1, 64, 1}).SerializeAsString();
  for (std::size_t size = 0; size < wire.size(); ++size) {
    const grpc::Status status = RawCall(channel, kNormalize, wire.substr(0, size));
    ASSERT_EQ(status.error_code(), kInvalid) << size << ": " << status.error_message();
  }
  EXPECT_THAT(RawCall(channel, kNormalize, wire.substr(0, wire.size() - 1)).error_message(),
              HasSubstr("request: malformed protobuf in inputs[0]"));
  EXPECT_TRUE(RawCall(channel, kNormalize, wire).ok());
}

TEST(NormServiceTest, RefusesAMalformedControlMessageAsInvalid) {
  TestServer server;
  const auto channel = server.NewChannel();
  for (const char* method : {"ListModels", "GetModel", "LoadModel", "UnloadModel", "GetServerInfo",
                             "ListSharedMemory"}) {
    const grpc::Status status =
        RawCall(channel, absl::StrCat("/normd.v1.NormService/", method), "\x0a\x7f");
    EXPECT_EQ(status.error_code(), kInvalid) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("request: malformed protobuf")) << method;
  }
  EXPECT_THAT(
      RawCall(channel, "/normd.v1.NormService/GetModel", std::string(5000, 'x')).error_message(),
      HasSubstr("request: 5000 bytes, wanted at most 4096"));
}

TEST(NormServiceTest, RefusesARequestOverTheByteLimitAndGoesOn) {
  TestServerOptions options;
  options.accept.max_request_bytes = 64 * 256;
  TestServer server(options);
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 64})).ok());
  const grpc::Status little = Normalize(server, MakeRequest("instance_norm_64", {1, 64, 65}));
  EXPECT_EQ(little.error_code(), kInvalid);
  EXPECT_THAT(little.error_message(), HasSubstr("data: 16640 bytes, wanted at most 16384"));
  // Far over it: the transport refuses before the message is read.
  const grpc::Status far = Normalize(server, MakeRequest("instance_norm_64", {9, 64, 64}));
  EXPECT_EQ(far.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(far.error_message(), HasSubstr("larger than max"));
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 64})).ok());
}

// A small message could inflate to any size before the server's own limits see it.
TEST(NormServiceTest, RefusesACompressedMessage) {
  TestServer server;
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::NormalizeResponse response;
  const grpc::Status status =
      server.stub().Normalize(&context, MakeRequest("instance_norm_64", {1, 64, 8, 8}), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  const grpc::Status plain =
      Normalize(server, MakeRequest("instance_norm_64", {1, 64, 8, 8}), &response);
  EXPECT_TRUE(plain.ok()) << plain.error_message();
}

TEST(NormServiceTest, AnswersAThousandMixedRequestsAtOnceAsEachAlone) {
  TestServerOptions options;
  options.cpu_lanes = 3;
  TestServer server(options);
  std::vector<v1::NormalizeRequest> requests;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t n = 1 + i % 5;
    const std::int64_t s = 1 + (i * 7) % 61;
    const std::uint64_t seed = static_cast<std::uint64_t>(i) + 1;
    switch (i % 5) {
      case 0: requests.push_back(MakeRequest("instance_norm_64", {n, 64, s, 3}, seed)); break;
      case 1: requests.push_back(MakeRequest("group_norm_64_8", {n, 64, s}, seed)); break;
      case 2: requests.push_back(MakeRequest("layer_norm_1024", {n, 1024}, seed)); break;
      case 3: requests.push_back(MakeRequest("batch_norm_64", {n, 64, s, 2}, seed)); break;
      default: requests.push_back(MakeRequest("group_norm_320_32_silu_last", {n, s, 320}, seed));
    }
  }
  std::vector<std::string> alone;
  for (const v1::NormalizeRequest& request : requests) {
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(server, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.batch().requests(), 1);
    alone.push_back(response.outputs(0).data());
  }

  std::vector<std::unique_ptr<AsyncCall>> calls;
  server.gate().Close();
  for (const v1::NormalizeRequest& request : requests) {
    calls.push_back(std::make_unique<AsyncCall>(server.stub(), request));
  }
  server.gate().WaitForStalled(1);
  server.gate().Open();
  std::int64_t in_company = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    ASSERT_TRUE(calls[i]->Wait().ok()) << calls[i]->status.error_message();
    ASSERT_TRUE(calls[i]->response.outputs(0).data() == alone[i]) << "request " << i;
    in_company += calls[i]->response.batch().requests() > 1 ? 1 : 0;
  }
  EXPECT_GT(in_company, 500) << "the requests were to share batches";
}

TEST(NormServiceTest, ComputesOnTheThreadThatReceivedWhatIsSmallWithTheSameBits) {
  TestServerOptions options;
  options.queue.max_inline_bytes = 64 << 10;
  TestServer server(options);
  server.gate().Close();  // No lane computes.
  std::vector<v1::NormalizeRequest> requests;
  std::vector<v1::NormalizeResponse> responses;
  for (const std::int64_t samples : {0, 1, 3}) {
    requests.push_back(MakeRequest("group_norm_64_8", {samples, 64, 5, 7}));
    ASSERT_TRUE(Normalize(server, requests.back(), &responses.emplace_back()).ok());
    EXPECT_THAT(responses.back().batch().lane(), HasSubstr("inline"));
    EXPECT_EQ(responses.back().batch().requests(), 1);
  }
  AsyncCall large(server.stub(), MakeRequest("group_norm_64_8", {8, 64, 8, 8}));
  server.gate().WaitForStalled(1);
  server.gate().Open();
  EXPECT_TRUE(large.Wait().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);

  TestServer lanes_only;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    v1::NormalizeResponse response;
    ASSERT_TRUE(Normalize(lanes_only, requests[i], &response).ok());
    EXPECT_EQ(response.outputs(0).data(), responses[i].outputs(0).data());
    EXPECT_THAT(response.batch().lane(), Not(HasSubstr("inline")));
  }
}

TEST(NormServiceTest, FinishesARequestOnTheModelThatIsUnloadedMeanwhile) {
  TestServer server;
  server.gate().Close();
  AsyncCall call(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  server.gate().WaitForStalled(1);

  grpc::ClientContext context;
  v1::UnloadModelRequest request;
  v1::UnloadModelResponse response;
  request.set_model("instance_norm_64");
  const grpc::Status unloaded = server.stub().UnloadModel(&context, request, &response);
  ASSERT_TRUE(unloaded.ok()) << unloaded.error_message();
  EXPECT_THAT(response.versions(), ElementsAre(1));
  EXPECT_EQ(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 16})).error_code(),
            kNotFound);
  server.gate().Open();
  EXPECT_TRUE(call.Wait().ok()) << call.status.error_message();
}

TEST(NormServiceTest, EndsARequestThatExpiresInTheQueueWithoutComputingIt) {
  TestServer server;
  server.gate().Close();
  AsyncCall first(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  server.gate().WaitForStalled(1);
  const double held_by_first = server.Metric("normd_inflight_bytes");

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(30));
  v1::NormalizeResponse response;
  const grpc::Status late =
      server.stub().Normalize(&context, MakeRequest("instance_norm_64", {1, 64, 16}), &response);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // The client's clock runs out before the server's, which began when the request arrived.
  while (server.Metric("normd_inflight_bytes") > held_by_first) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  server.gate().Open();
  EXPECT_TRUE(first.Wait().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_batch_requests_sum{model=\"instance_norm_64\"}"), 1);
}

TEST(NormServiceTest, EndsARequestAtItsQueueTimeoutWhileTheLaneIsBusy) {
  TestServer server;
  server.gate().Close();
  AsyncCall first(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  server.gate().WaitForStalled(1);

  v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  request.set_queue_timeout_ns(1'000'000);
  const grpc::Status late = Normalize(server, request);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(late.error_message(), HasSubstr("queue_timeout_ns: no lane was free for 1000000 ns"));
  server.gate().Open();
  EXPECT_TRUE(first.Wait().ok());
  request.set_queue_timeout_ns(std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(Normalize(server, request).ok());
}

TEST(NormServiceTest, ComputesAHigherPriorityFirst) {
  TestServerOptions options;
  options.queue.limits.max_rows = 64;  // One request.
  TestServer server(options);
  server.gate().Close();
  AsyncCall first(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  server.gate().WaitForStalled(1);
  v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  request.set_priority(v1::PRIORITY_LOW);
  AsyncCall low(server.stub(), request);
  while (server.queue().waiting_requests() < 1) std::this_thread::yield();
  request.set_priority(v1::PRIORITY_HIGH);
  AsyncCall high(server.stub(), request);
  while (server.queue().waiting_requests() < 2) std::this_thread::yield();
  server.gate().Open();
  ASSERT_TRUE(low.Wait().ok());
  ASSERT_TRUE(high.Wait().ok());
  EXPECT_LT(high.response.batch().id(), low.response.batch().id());
}

TEST(NormServiceTest, TakesACancelledRequestOutOfTheQueue) {
  TestServer server;
  server.gate().Close();
  AsyncCall first(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  server.gate().WaitForStalled(1);

  {
    AsyncCall second(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
    while (server.queue().waiting_requests() == 0) std::this_thread::yield();
    second.context.TryCancel();
    EXPECT_EQ(second.Wait().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The lane is still busy: only the cancellation can have taken it out.
  while (server.queue().waiting_requests() != 0) std::this_thread::yield();
  server.gate().Open();
  EXPECT_TRUE(first.Wait().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_batch_requests_sum{model=\"instance_norm_64\"}"), 1);
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(NormServiceTest, SurvivesCancellationAtAnyMoment) {
  TestServer server;
  for (int round = 0; round < 300; ++round) {
    AsyncCall call(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
    for (int spin = 0; spin < round * 20; ++spin) std::this_thread::yield();
    call.context.TryCancel();
    const grpc::Status& status = call.Wait();
    ASSERT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
        << status.error_message();
  }
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

// The pushback of the trailing metadata; "" if there is none.
std::string Pushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

TEST(NormServiceTest, RefusesWithARetryHintWhenTheQueueIsFull) {
  TestServerOptions options;
  options.queue.max_queue_requests = 1;
  TestServer server(options);
  server.gate().Close();
  AsyncCall taken(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  server.gate().WaitForStalled(1);
  AsyncCall waiting(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  while (server.queue().waiting_requests() == 0) std::this_thread::yield();

  AsyncCall refused(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(refused.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("queue"));
  EXPECT_EQ(Pushback(refused.context), "100");
  server.gate().Open();
  EXPECT_TRUE(taken.Wait().ok());
  EXPECT_TRUE(waiting.Wait().ok());
  EXPECT_EQ(Pushback(waiting.context), "");
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(NormServiceTest, RefusesWithARetryHintWhenTheByteBudgetIsSpent) {
  TestServerOptions options;
  options.admission.max_inflight_bytes = 3 * 64 * 16 * 4;
  TestServer server(options);
  server.gate().Close();
  AsyncCall taken(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  server.gate().WaitForStalled(1);
  AsyncCall refused(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(refused.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), AllOf(HasSubstr("8192"), HasSubstr("4096")));
  EXPECT_EQ(Pushback(refused.context), "100");
  // More than the whole budget: no retry will help.
  const grpc::Status never = Normalize(server, MakeRequest("instance_norm_64", {2, 64, 16}));
  EXPECT_EQ(never.error_code(), kInvalid);
  server.gate().Open();
  EXPECT_TRUE(taken.Wait().ok());
}

TEST(NormServiceTest, KeepsTheReasonOfAnInternalFailureToItself) {
  TestServerOptions options;
  options.fail_at_batch = 0;
  TestServer server(options);
  const grpc::Status status = Normalize(server, MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), Not(HasSubstr("deadbeef")));
}

TEST(NormServiceTest, SaysWhenAFailedRequestMayBeTriedAgainIfTheLaneDoes) {
  TestServerOptions options;
  options.fail_at_batch = 0;
  TestServer silent(options);
  AsyncCall failed(silent.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(failed.Wait().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(Pushback(failed.context), "");
  SetRetryAfter(Duration(0), options.lane_error);
  TestServer server(options);
  AsyncCall retried(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  EXPECT_EQ(retried.Wait().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(Pushback(retried.context), "0");
}

TEST(NormServiceTest, CountsEachCallWithItsCodeAndItsBytes) {
  TestServer server;
  const v1::NormalizeRequest request = MakeRequest("instance_norm_64", {1, 64, 16});
  ASSERT_TRUE(Normalize(server, request).ok());
  ASSERT_FALSE(Normalize(server, MakeRequest("instance_norm_64", {1, 63, 16})).ok());
  ASSERT_FALSE(Normalize(server, MakeRequest("nothing", {1, 63, 16})).ok());
  server.WaitIdle();
  auto requests = [&](const std::string& model, const std::string& version,
                      const std::string& code) {
    return server.Metric(absl::StrCat("normd_requests_total{model=\"", model, "\",version=\"",
                                      version, "\",method=\"Normalize\",code=\"", code, "\"}"));
  };
  EXPECT_EQ(requests("instance_norm_64", "1", "OK"), 1);
  EXPECT_EQ(requests("instance_norm_64", "1", "INVALID_ARGUMENT"), 1);
  EXPECT_EQ(requests("", "", "NOT_FOUND"), 1);
  EXPECT_EQ(server.Metric("normd_stage_duration_seconds_count{model=\"instance_norm_64\","
                          "stage=\"encode\"}"),
            1);
  EXPECT_GE(server.Metric("normd_payload_bytes_total{direction=\"in\"}"), 3 * 4000);
  EXPECT_GE(server.Metric("normd_payload_bytes_total{direction=\"out\"}"), 64 * 16 * 4);
  EXPECT_EQ(server.Metric("normd_ready"), 1);
}

}  // namespace
}  // namespace normd
