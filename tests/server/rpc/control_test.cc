// The methods that control and describe the server, and its health.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/probes.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr char kService[] = "normd.v1.NormService";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

template <typename Request, typename Response>
using ControlMethod = grpc::Status (v1::NormService::Stub::*)(grpc::ClientContext*, const Request&,
                                                              Response*);

template <typename Request, typename Response>
grpc::Status Call(TestServer& server, ControlMethod<Request, Response> method,
                  const Request& request, Response& response) {
  grpc::ClientContext context;
  return (server.stub().*method)(&context, request, &response);
}

grpc::Status Load(TestServer& server, const std::string& model, v1::LoadModelResponse& response,
                  std::int64_t version = 0) {
  v1::LoadModelRequest request;
  request.set_model(model);
  request.set_version(version);
  return Call(server, &v1::NormService::Stub::LoadModel, request, response);
}

// `response` may be null.
grpc::Status Unload(TestServer& server, const std::string& model,
                    v1::UnloadModelResponse* response = nullptr) {
  v1::UnloadModelRequest request;
  request.set_model(model);
  v1::UnloadModelResponse unused;
  return Call(server, &v1::NormService::Stub::UnloadModel, request,
              response != nullptr ? *response : unused);
}

grpc::Status Get(TestServer& server, const std::string& model, v1::GetModelResponse& response) {
  v1::GetModelRequest request;
  request.set_model(model);
  return Call(server, &v1::NormService::Stub::GetModel, request, response);
}

v1::ListModelsResponse List(TestServer& server) {
  v1::ListModelsResponse response;
  EXPECT_TRUE(Call(server, &v1::NormService::Stub::ListModels, {}, response).ok());
  return response;
}

v1::GetServerInfoResponse InfoOf(TestServer& server) {
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(Call(server, &v1::NormService::Stub::GetServerInfo, {}, info).ok());
  return info;
}

Health HealthOf(TestServer& server, const std::string& service) {
  Health health = Health::kUnknown;
  CheckHealth(server.NewChannel(), service, &health);
  return health;
}

// Were one of them computed where the call arrives, thousands of models would hold up requests.
TEST(ControlTest, ListsHaveAThreadForWhichNobodyElseWaits) {
  const std::string methods[] = {"/normd.v1.NormService/ListModels",
                                 "/normd.v1.NormService/ListSharedMemory",
                                 "/inference.GRPCInferenceService/ModelStatistics",
                                 "/inference.GRPCInferenceService/RepositoryIndex",
                                 "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
                                 "/inference.GRPCInferenceService/CudaSharedMemoryStatus"};
  TestServer server;
  Gate gate;
  gate.Close();
  ASSERT_NE(server.lists().Submit([&gate] { gate.Pass(); }), 0u);
  gate.WaitForStalled(1);
  std::atomic<int> listed{0};
  std::vector<std::thread> callers;
  for (const std::string& method : methods) {
    callers.emplace_back([&server, &listed, &method] {
      RawCall(server.NewChannel(), method, "");
      ++listed;
    });
  }
  auto& active = server.stop_parts().active;
  WaitUntil([&] {
    return active.count() >= static_cast<std::int64_t>(std::size(methods)) || listed != 0;
  });
  v1::GetModelResponse model;
  EXPECT_TRUE(Get(server, "layer_norm_1024", model).ok());
  EXPECT_EQ(HealthOf(server, ""), Health::kServing);
  EXPECT_TRUE(RawCall(server.NewChannel(), "/inference.GRPCInferenceService/ServerLive", "").ok());
  EXPECT_TRUE(Normalize(server, MakeRequest("layer_norm_1024", {3, 1024})).ok());
  EXPECT_EQ(listed, 0);
  gate.Open();
  for (std::thread& caller : callers) caller.join();
}

TEST(ControlTest, ListsEveryModelByName) {
  TestServer server;
  const v1::ListModelsResponse response = List(server);
  std::vector<std::string> names;
  for (const v1::ModelInfo& model : response.models()) {
    names.push_back(model.name());
    EXPECT_EQ(model.version(), 1);
    EXPECT_EQ(model.state(), v1::ModelInfo::READY) << model.error();
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"group_norm_64_8", "instance_norm_64"}));
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(ControlTest, DescribesAModelWithItsConfigAndParameters) {
  TestServer server;
  v1::GetModelResponse response;
  ASSERT_TRUE(Get(server, "group_norm_64_8", response).ok());
  EXPECT_EQ(response.model().config().group_norm().groups(), 8);
  std::vector<std::string> parameters;
  for (const v1::Parameter& parameter : response.model().parameters()) {
    parameters.push_back(parameter.name());
    EXPECT_THAT(parameter.shape(), ElementsAre(64));
  }
  EXPECT_THAT(parameters, UnorderedElementsAre("weight", "bias"));
  EXPECT_GT(response.model().load_ns(), 0);
  EXPECT_EQ(Get(server, "nothing", response).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Get(server, "../x", response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// "name[dims]" for each.
std::vector<std::string> TensorsOf(
    const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors) {
  std::vector<std::string> texts;
  for (const v1::TensorInfo& tensor : tensors) {
    texts.push_back(absl::StrCat(tensor.name(), "[", absl::StrJoin(tensor.shape(), ","), "]"));
  }
  return texts;
}

TEST(ControlTest, TellsTheInputsAndOutputsOfEveryModel) {
  TestServer server;
  v1::GetModelResponse response;
  ASSERT_TRUE(Get(server, "fused_linear_512", response).ok());
  EXPECT_THAT(TensorsOf(response.model().inputs()), ElementsAre("x[-2,512]", "y[-2,512]"));
  EXPECT_THAT(TensorsOf(response.model().outputs()), ElementsAre("out[-2,512]"));
  ASSERT_TRUE(Get(server, "group_norm_320_32_silu_last", response).ok());
  EXPECT_THAT(TensorsOf(response.model().inputs()), ElementsAre("x[-1,-2,320]"));
  const v1::ListModelsResponse all = List(server);
  for (const v1::ModelInfo& model : all.models()) {
    SCOPED_TRACE(model.name());
    EXPECT_FALSE(model.inputs().empty());
    EXPECT_FALSE(model.outputs().empty());
  }
}

TEST(ControlTest, UnloadsAndLoadsAModelAndItsHealthFollows) {
  TestServer server;
  const std::string health = absl::StrCat(kService, "/instance_norm_64");
  EXPECT_EQ(HealthOf(server, health), Health::kServing);

  v1::UnloadModelResponse unloaded;
  ASSERT_TRUE(Unload(server, "instance_norm_64", &unloaded).ok());
  EXPECT_THAT(unloaded.versions(), ElementsAre(1));
  // Unknown, as a model that never was; the server itself serves on.
  Health unknown = Health::kUnknown;
  EXPECT_EQ(CheckHealth(server.NewChannel(), health, &unknown).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(HealthOf(server, kService), Health::kServing);
  EXPECT_EQ(Unload(server, "instance_norm_64").error_code(), grpc::StatusCode::NOT_FOUND);

  v1::LoadModelResponse loaded;
  ASSERT_TRUE(Load(server, "instance_norm_64", loaded).ok());
  EXPECT_EQ(loaded.model().version(), 1);
  EXPECT_EQ(HealthOf(server, health), Health::kServing);
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 16})).ok());
}

TEST(ControlTest, ServesTheHighestVersionAndAnyThatIsNamed) {
  TestServer server;
  const std::filesystem::path model = server.repository() + "/instance_norm_64";
  std::filesystem::copy(model / "1", model / "3", std::filesystem::copy_options::recursive);
  v1::LoadModelResponse loaded;
  ASSERT_TRUE(Load(server, "instance_norm_64", loaded).ok());
  EXPECT_EQ(loaded.model().version(), 3);
  AsyncCall highest(server.stub(), MakeRequest("instance_norm_64", {1, 64, 16}));
  ASSERT_TRUE(highest.Wait().ok());
  EXPECT_EQ(highest.response.version(), 3);
  v1::NormalizeRequest named = MakeRequest("instance_norm_64", {1, 64, 16});
  named.set_version(1);
  AsyncCall first(server.stub(), named);
  ASSERT_TRUE(first.Wait().ok());
  EXPECT_EQ(first.response.version(), 1);
}

TEST(ControlTest, GoesOnServingWhatServedWhenAReloadFails) {
  TestServer server;
  const std::string file = server.repository() + "/instance_norm_64/1/params.safetensors";
  std::ofstream(file, std::ios::trunc) << "half";
  v1::LoadModelResponse response;
  const grpc::Status failed = Load(server, "instance_norm_64", response);
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << failed.error_message();
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 16})).ok());
  v1::GetModelResponse info;
  ASSERT_TRUE(Get(server, "instance_norm_64", info).ok());
  EXPECT_THAT(failed.error_message(), HasSubstr(info.model().error()));
  EXPECT_THAT(info.model().error(), HasSubstr("params.safetensors: 4 bytes"));
}

TEST(ControlTest, RefusesToLoadWhatIsNoModel) {
  TestServer server;
  v1::LoadModelResponse response;
  EXPECT_EQ(Load(server, "nothing", response).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Load(server, "instance_norm_64", response, 9).error_code(),
            grpc::StatusCode::NOT_FOUND);
  for (const char* name : {"../instance_norm_64", "", ".", "a/b"}) {
    EXPECT_EQ(Load(server, name, response).error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << name;
  }
}

TEST(ControlTest, TellsAboutTheServer) {
  TestServerOptions options;
  options.info.version = "1.2.3";
  options.info.simd = "AVX9";
  options.info.lanes = {"cpu:0"};
  options.info.max_inflight_bytes = 12345;
  TestServer server(options);
  const v1::GetServerInfoResponse info = InfoOf(server);
  EXPECT_EQ(info.version(), "1.2.3");
  EXPECT_EQ(info.simd(), "AVX9");
  EXPECT_THAT(info.lanes(), ElementsAre("cpu:0"));
  EXPECT_EQ(info.max_request_bytes(), options.accept.max_request_bytes);
  EXPECT_EQ(info.max_inflight_bytes(), 12345);
  EXPECT_GT(info.uptime_ns(), 0);
  EXPECT_TRUE(info.ready());
}

// A LoadModel call that is under way.
class AsyncLoad {
 public:
  AsyncLoad(TestServer& server, const std::string& model,
            std::chrono::milliseconds timeout = std::chrono::hours(1)) {
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    status_ = std::async(std::launch::async, [this, &server, model] {
      v1::LoadModelRequest request;
      request.set_model(model);
      v1::LoadModelResponse response;
      return server.stub().LoadModel(&context, request, &response);
    });
  }
  ~AsyncLoad() { Wait(); }
  grpc::Status Wait() { return status_.get(); }

  grpc::ClientContext context;

 private:
  std::shared_future<grpc::Status> status_;
};

// The steady clock, which a test moves ahead.
class MovedClock final : public Clock {
 public:
  TimePoint Now() const override {
    return std::chrono::steady_clock::now() + Duration(ahead_.load());
  }
  void Advance(Duration duration) { ahead_ += duration.count(); }

 private:
  std::atomic<Duration::rep> ahead_{0};
};

// A server whose first load after the start holds the loader's thread until `gate` opens.
class BusyLoaderTest : public ::testing::Test {
 protected:
  BusyLoaderTest() {
    gate_.Close();
    busy_ = true;
    first_.emplace(server_, "instance_norm_64");
    gate_.WaitForStalled(1);
    changes_ = 0;
  }
  ~BusyLoaderTest() override {
    busy_ = false;
    gate_.Open();
  }
  static TestServerOptions Options(BusyLoaderTest& test) {
    TestServerOptions options;
    options.clock = &test.clock_;
    options.on_change = [&test] {
      ++test.changes_;
      if (test.busy_) test.gate_.Pass();
    };
    return options;
  }
  double Ended(const char* code) {
    return server_.Metric(absl::StrCat(
        "normd_requests_total{model=\"\",version=\"\",method=\"LoadModel\",code=\"", code, "\"}"));
  }
  // Until so many calls are under way.
  void WaitForCalls(std::int64_t calls) {
    WaitUntil([&] { return server_.stop_parts().active.count() == calls; });
  }
  // The loader goes on with what still waits.
  void Release() {
    busy_ = false;
    gate_.Open();
    EXPECT_TRUE(first_->Wait().ok());
    server_.WaitIdle();
  }

  MovedClock clock_;
  Gate gate_;
  std::atomic<bool> busy_{false};
  std::atomic<int> changes_{0};
  TestServer server_{Options(*this)};
  std::optional<AsyncLoad> first_;
};

TEST_F(BusyLoaderTest, ALoadWhoseDeadlinePassesGivesUpItsPlaceAtOnce) {
  // One whose deadline passes on its way here is none of the server's; then another is sent.
  while (Ended("DEADLINE_EXCEEDED") == 0) {
    AsyncLoad load(server_, "group_norm_64_8", std::chrono::milliseconds(50));
    EXPECT_EQ(load.Wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    WaitForCalls(1);
  }
  Release();
  EXPECT_EQ(changes_, 0) << "what nobody waited for was loaded";
}

// Its deadline passes on the server's clock alone, so gRPC does not say so.
TEST_F(BusyLoaderTest, ALoadWhoseTurnComesAfterItsDeadlineIsNotBegun) {
  AsyncLoad load(server_, "group_norm_64_8");
  WaitForCalls(2);
  clock_.Advance(std::chrono::hours(2));
  Release();
  const grpc::Status status = load.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "the call's deadline passed before its turn came");
  EXPECT_EQ(changes_, 0) << "what nobody waited for was loaded";
}

// Many clients that leave keep nobody else out.
TEST_F(BusyLoaderTest, LoadsWhoseClientsLeaveMakeRoomForOthersAtOnce) {
  constexpr int kMoreThanMayWait = 100;
  for (int i = 0; i < kMoreThanMayWait; ++i) {
    AsyncLoad load(server_, "group_norm_64_8");
    WaitForCalls(2);
    load.context.TryCancel();
    EXPECT_EQ(load.Wait().error_code(), grpc::StatusCode::CANCELLED);
    // The server is done with it too, though the loader is not.
    WaitForCalls(1);
  }
  EXPECT_EQ(Ended("CANCELLED"), kMoreThanMayWait);
  AsyncLoad wanted(server_, "group_norm_64_8");
  WaitForCalls(2);
  Release();
  EXPECT_TRUE(wanted.Wait().ok());
  EXPECT_EQ(changes_, 1) << "what nobody waited for was loaded";
}

TEST(ControlTest, StopsServingWhenTheLastLaneFails) {
  TestServerOptions options;
  options.fail_at_batch = 0;
  TestServer server(options);
  RawStream watch(server.NewChannel(), kWatch, HealthRequest(kService));
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServing);
  EXPECT_EQ(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 16})).error_code(),
            grpc::StatusCode::INTERNAL);
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kNotServing);
  WaitUntil([&] { return !server.stop_parts().admission.ready(); });
  EXPECT_EQ(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 16})).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // It can still be asked what is wrong.
  EXPECT_FALSE(InfoOf(server).ready());
  EXPECT_EQ(server.Metric("normd_ready"), 0);
}

TEST(HealthTest, AnswersForTheServerTheServiceAndEachModel) {
  TestServer server;
  EXPECT_EQ(HealthOf(server, ""), Health::kServing);
  EXPECT_EQ(HealthOf(server, kService), Health::kServing);
  for (const char* service : {kService, "inference.GRPCInferenceService"}) {
    EXPECT_EQ(HealthOf(server, absl::StrCat(service, "/group_norm_64_8")), Health::kServing);
  }
  Health health = Health::kUnknown;
  EXPECT_EQ(CheckHealth(server.NewChannel(), "nothing", &health).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(CheckHealth(server.NewChannel(), std::string(1 << 20, 'n'), &health).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(HealthTest, WatchesReportEachChangeAlsoOfAModelThatIsNotThereYet) {
  TestServer server;
  const std::string request = HealthRequest(absl::StrCat(kService, "/group_norm_64_8"));
  RawStream watch(server.NewChannel(), kWatch, request);
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServing);
  ASSERT_TRUE(Unload(server, "group_norm_64_8").ok());
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServiceUnknown);
  RawStream later(server.NewChannel(), kWatch, request);
  ASSERT_EQ(ParseHealth(later.Read().value_or("")), Health::kServiceUnknown);
  ASSERT_TRUE(LoadModel(server, "group_norm_64_8").ok());
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServing);
  ASSERT_EQ(ParseHealth(later.Read().value_or("")), Health::kServing);
}

void UnloadAll(TestServer& server) {
  const v1::ListModelsResponse list = List(server);
  for (const v1::ModelInfo& model : list.models()) {
    ASSERT_TRUE(Unload(server, model.name()).ok());
  }
}

// By every way in which it can be asked.
void ExpectReady(TestServer& server, bool ready) {
  const Health health = ready ? Health::kServing : Health::kNotServing;
  EXPECT_EQ(HealthOf(server, ""), health);
  EXPECT_EQ(HealthOf(server, kService), health);
  EXPECT_EQ(HealthOf(server, "inference.GRPCInferenceService"), health);
  EXPECT_EQ(server.Metric("normd_ready"), ready ? 1 : 0);
  EXPECT_EQ(InfoOf(server).ready(), ready);
  const auto inference = inference::GRPCInferenceService::NewStub(server.NewChannel());
  grpc::ClientContext context;
  inference::ServerReadyResponse oip;
  ASSERT_TRUE(inference->ServerReady(&context, {}, &oip).ok());
  EXPECT_EQ(oip.ready(), ready);
  EXPECT_EQ(ProbeStatus("/v2/health/ready", server.stop_parts().readiness, server.registry()),
            ready ? 200 : 400);
}

TEST(HealthTest, AServerIsReadyWhileAModelIsLoaded) {
  TestServer server;
  ExpectReady(server, true);
  RawStream watch(server.NewChannel(), kWatch, HealthRequest(""));
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServing);
  UnloadAll(server);
  ExpectReady(server, false);
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kNotServing);
  ASSERT_TRUE(LoadModel(server, "group_norm_64_8").ok());
  ExpectReady(server, true);
  ASSERT_EQ(ParseHealth(watch.Read().value_or("")), Health::kServing);
}

TEST(HealthTest, AServerThatMayHaveNoModelsIsReadyWithoutAny) {
  TestServerOptions options;
  options.without_models = WithoutModels::kReady;
  TestServer server(options);
  UnloadAll(server);
  ExpectReady(server, true);
  server.stop_parts().readiness.Stop();
  ExpectReady(server, false);
}

}  // namespace
}  // namespace normd::testing
