// inference.GRPCInferenceService beside normd.v1, through generated classes, as its clients call
// it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/probes.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = grpc::StatusCode;
using Inference = inference::GRPCInferenceService;

class InferServiceTest : public ::testing::Test {
 protected:
  explicit InferServiceTest(TestServerOptions options = {}) : server_(std::move(options)) {}

  // Calls a method of the stub.
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (Inference::Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    return (stub_.get()->*method)(&context, request, response);
  }
  grpc::Status Infer(const inference::ModelInferRequest& request,
                     inference::ModelInferResponse* response = nullptr) {
    inference::ModelInferResponse unused;
    return Call(&Inference::Stub::ModelInfer, request, response == nullptr ? &unused : response);
  }
  TestServer server_;
  std::unique_ptr<Inference::Stub> stub_ = Inference::NewStub(server_.NewChannel());
};

// Models, shapes and types: every operation among them.
struct Case {
  std::string model;
  std::vector<std::int64_t> shape;
  std::vector<std::string> names = {""};
};
const Case kCases[] = {{"instance_norm_64", {2, 64, 7, 5}},
                       {"group_norm_64_8", {1, 64, 33}},
                       {"layer_norm_1024", {3, 1024}},
                       {"rms_norm_4096", {2, 4096}},
                       {"batch_norm_64", {2, 64, 4, 4}},
                       {"instance_norm_64", {0, 64, 4}},
                       {"fused_linear_512", {2, 512}, {"x", "y"}}};

TEST_F(InferServiceTest, GivesTheBitsOfNormalizeInEveryType) {
  for (const Case& example : kCases) {
    for (const v1::DataType dtype : {v1::FLOAT32, v1::FLOAT64, v1::FLOAT16, v1::BFLOAT16}) {
      SCOPED_TRACE(absl::StrCat(example.model, ", ", v1::DataType_Name(dtype)));
      v1::NormalizeRequest plain = MakeRequest(example.model, example.shape, example.names);
      for (v1::Tensor& input : *plain.mutable_inputs()) {
        std::string& data = *input.mutable_data();
        if (dtype == v1::FLOAT64) data += std::string(data);
        if (dtype == v1::FLOAT16 || dtype == v1::BFLOAT16) data.resize(data.size() / 2);
        input.set_dtype(dtype);
      }
      v1::NormalizeResponse wanted;
      const grpc::Status first = Normalize(server_, plain, &wanted);
      inference::ModelInferResponse got;
      const grpc::Status second = Infer(ToInfer(plain), &got);
      ASSERT_EQ(second.error_code(), first.error_code()) << second.error_message();
      if (!first.ok()) continue;  // A model that does not take the type.
      ASSERT_EQ(got.outputs_size(), 1);
      EXPECT_EQ(got.model_name(), example.model);
      EXPECT_EQ(got.model_version(), "1");
      EXPECT_EQ(got.outputs(0).name(), example.names.size() == 1 ? "y" : "out");
      EXPECT_EQ(got.outputs(0).datatype(), ToInfer(plain).inputs(0).datatype());
      EXPECT_EQ(
          std::vector<std::int64_t>(got.outputs(0).shape().begin(), got.outputs(0).shape().end()),
          example.shape);
      ASSERT_EQ(got.raw_output_contents_size(), 1);
      EXPECT_TRUE(got.raw_output_contents(0) == wanted.outputs(0).data());
    }
  }
}

TEST_F(InferServiceTest, RepeatsTheIdAndGivesTheOutputThatIsNamed) {
  inference::ModelInferRequest request = ToInfer(MakeRequest("layer_norm_1024", {1, 1024}));
  request.set_id("an id, of any text \u00e9");
  request.set_model_version("1");
  request.add_outputs()->set_name("y");
  inference::ModelInferResponse response;
  ASSERT_TRUE(Infer(request, &response).ok());
  EXPECT_EQ(response.id(), request.id());
  EXPECT_EQ(response.outputs_size(), 1);
}

TEST_F(InferServiceTest, ParametersThatMeanNothingHereAreIgnored) {
  inference::ModelInferRequest request = ToInfer(MakeRequest("layer_norm_1024", {1, 1024}));
  (*request.mutable_parameters())["sequence_id"].set_int64_param(7);
  (*request.mutable_parameters())["sequence_start"].set_bool_param(true);
  (*request.mutable_parameters())["mine"].set_double_param(0.5);
  (*request.mutable_parameters())["priority"].set_uint64_param(1);
  (*request.mutable_parameters())["timeout"].set_int64_param(1'000'000);
  (*request.mutable_inputs(0)->mutable_parameters())["content_type"].set_string_param("np");
  EXPECT_TRUE(Infer(request).ok());
}

// HealthTest has the server's readiness.
TEST_F(InferServiceTest, TellsWhetherItLivesAndModelsAreReady) {
  inference::ServerLiveResponse live;
  ASSERT_TRUE(Call(&Inference::Stub::ServerLive, {}, &live).ok());
  EXPECT_TRUE(live.live());
  const auto model_ready = [&](const std::string& name, const std::string& version) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelReadyResponse response;
    EXPECT_TRUE(Call(&Inference::Stub::ModelReady, request, &response).ok());
    return response.ready();
  };
  EXPECT_TRUE(model_ready("layer_norm_1024", ""));
  EXPECT_TRUE(model_ready("layer_norm_1024", "1"));
  EXPECT_FALSE(model_ready("layer_norm_1024", "2"));
  EXPECT_FALSE(model_ready("nothing", ""));
  server_.stop_parts().readiness.Stop();
  EXPECT_FALSE(model_ready("layer_norm_1024", ""));
}

TEST_F(InferServiceTest, DescribesServerAndModels) {
  inference::ServerMetadataResponse server;
  ASSERT_TRUE(Call(&Inference::Stub::ServerMetadata, {}, &server).ok());
  EXPECT_EQ(server.name(), "normd");
  EXPECT_THAT(server.extensions(), ::testing::Contains("statistics"));
  EXPECT_THAT(server.extensions(), ::testing::Not(::testing::Contains(HasSubstr("shared_memory"))));

  inference::ModelMetadataRequest wanted;
  wanted.set_name("fused_linear_512");
  inference::ModelMetadataResponse model;
  ASSERT_TRUE(Call(&Inference::Stub::ModelMetadata, wanted, &model).ok());
  EXPECT_THAT(model.versions(), ElementsAre("1"));
  EXPECT_EQ(model.platform(), "normd_linear_norm");
  ASSERT_EQ(model.inputs_size(), 2);
  EXPECT_EQ(model.inputs(0).name(), "x");
  EXPECT_EQ(model.inputs(0).datatype(), "FP32");
  EXPECT_THAT(model.inputs(0).shape(), ElementsAre(-1, 512));
  ASSERT_EQ(model.outputs_size(), 1);

  inference::ModelConfigRequest config_wanted;
  config_wanted.set_name("fused_linear_512");
  inference::ModelConfigResponse config;
  ASSERT_TRUE(Call(&Inference::Stub::ModelConfig, config_wanted, &config).ok());
  EXPECT_EQ(config.config().max_batch_size(), 0);
  EXPECT_EQ(config.config().input_size(), 2);
  EXPECT_EQ(config.config().input(0).data_type(), inference::TYPE_FP32);
  EXPECT_EQ(config.config().dynamic_batching().priority_levels(), 3u);
  EXPECT_FALSE(config.config().model_transaction_policy().decoupled());

  wanted.set_name("nothing");
  EXPECT_EQ(Call(&Inference::Stub::ModelMetadata, wanted, &model).error_code(), Code::NOT_FOUND);
  wanted.set_name("../x");
  EXPECT_EQ(Call(&Inference::Stub::ModelMetadata, wanted, &model).error_code(),
            Code::INVALID_ARGUMENT);
  wanted.set_name("layer_norm_1024");
  wanted.set_version("one");
  EXPECT_EQ(Call(&Inference::Stub::ModelMetadata, wanted, &model).error_code(),
            Code::INVALID_ARGUMENT);
}

TEST_F(InferServiceTest, LoadsAndUnloads) {
  inference::RepositoryModelUnloadRequest unload;
  unload.set_model_name("layer_norm_1024");
  (*unload.mutable_parameters())["unload_dependents"].set_bool_param(true);
  inference::RepositoryModelUnloadResponse unloaded;
  ASSERT_TRUE(Call(&Inference::Stub::RepositoryModelUnload, unload, &unloaded).ok());
  EXPECT_EQ(Infer(ToInfer(MakeRequest("layer_norm_1024", {1, 1024}))).error_code(),
            Code::NOT_FOUND);
  EXPECT_EQ(Call(&Inference::Stub::RepositoryModelUnload, unload, &unloaded).error_code(),
            Code::NOT_FOUND);
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("layer_norm_1024");
  inference::RepositoryModelLoadResponse loaded;
  ASSERT_TRUE(Call(&Inference::Stub::RepositoryModelLoad, load, &loaded).ok());
  EXPECT_TRUE(Infer(ToInfer(MakeRequest("layer_norm_1024", {1, 1024}))).ok());

  (*load.mutable_parameters())["config"].set_string_param("{}");
  grpc::Status status = Call(&Inference::Stub::RepositoryModelLoad, load, &loaded);
  EXPECT_EQ(status.error_code(), Code::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("parameters[\"config\"]"));
  load.clear_parameters();
  load.set_repository_name("other");
  EXPECT_EQ(Call(&Inference::Stub::RepositoryModelLoad, load, &loaded).error_code(),
            Code::UNIMPLEMENTED);
  load.clear_repository_name();
  load.set_model_name("../x");
  EXPECT_EQ(Call(&Inference::Stub::RepositoryModelLoad, load, &loaded).error_code(),
            Code::INVALID_ARGUMENT);
}

TEST_F(InferServiceTest, ListsTheRepository) {
  const auto index = [&](bool ready) {
    inference::RepositoryIndexRequest request;
    request.set_ready(ready);
    inference::RepositoryIndexResponse response;
    EXPECT_TRUE(Call(&Inference::Stub::RepositoryIndex, request, &response).ok());
    return response;
  };
  const inference::RepositoryIndexResponse all = index(false);
  EXPECT_EQ(all.models_size(), static_cast<int>(server_.registry().List().size()));
  EXPECT_EQ(all.models(0).state(), "READY");
  EXPECT_EQ(all.models(0).version(), "1");
  EXPECT_EQ(index(true).models_size(), all.models_size());
}

TEST_F(InferServiceTest, StatisticsCountBothProtocolsByVersion) {
  const auto statistics = [&](const std::string& name, const std::string& version) {
    inference::ModelStatisticsRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelStatisticsResponse response;
    const grpc::Status status = Call(&Inference::Stub::ModelStatistics, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  };
  EXPECT_EQ(statistics("", "").model_stats_size(),
            static_cast<int>(server_.registry().List().size()));
  const v1::NormalizeRequest plain = MakeRequest("layer_norm_1024", {3, 1024});
  ASSERT_TRUE(Normalize(server_, plain).ok());
  ASSERT_TRUE(Infer(ToInfer(plain)).ok());
  inference::ModelInferRequest wrong = ToInfer(plain);
  wrong.mutable_inputs(0)->set_shape(1, 1023);
  ASSERT_FALSE(Infer(wrong).ok());
  server_.WaitIdle();
  const auto all = statistics("layer_norm_1024", "1");
  ASSERT_EQ(all.model_stats_size(), 1);
  const inference::ModelStatistics& stats = all.model_stats(0);
  EXPECT_EQ(stats.name(), "layer_norm_1024");
  EXPECT_EQ(stats.version(), "1");
  EXPECT_EQ(stats.inference_count(), 2u);
  EXPECT_EQ(stats.execution_count(), 2u);
  EXPECT_GT(stats.last_inference(), 1'600'000'000'000u);
  EXPECT_EQ(stats.inference_stats().success().count(), 2u);
  EXPECT_EQ(stats.inference_stats().fail().count(), 1u);
  EXPECT_GT(stats.inference_stats().success().ns(), stats.inference_stats().compute_infer().ns());
  EXPECT_GT(stats.inference_stats().compute_infer().ns(), 0u);
  ASSERT_EQ(stats.batch_stats_size(), 1);
  EXPECT_EQ(stats.batch_stats(0).batch_size(), 1u);
  EXPECT_EQ(stats.batch_stats(0).compute_infer().count(), 2u);
  EXPECT_EQ(stats.batch_stats(0).compute_infer().ns(),
            stats.inference_stats().compute_infer().ns());
  EXPECT_EQ(server_.Metric("normd_requests_total{model=\"layer_norm_1024\",version=\"1\","
                           "method=\"ModelInfer\",code=\"OK\"}"),
            1);
  inference::ModelStatisticsRequest request;
  request.set_name("nothing");
  inference::ModelStatisticsResponse unused;
  EXPECT_EQ(Call(&Inference::Stub::ModelStatistics, request, &unused).error_code(),
            Code::NOT_FOUND);
}

TEST_F(InferServiceTest, SharedMemoryThatIsSwitchedOffSaysSo) {
  for (const char* method :
       {"SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"}) {
    const grpc::Status status =
        RawCall(server_.NewChannel(), absl::StrCat("/inference.GRPCInferenceService/", method), "");
    EXPECT_EQ(status.error_code(), Code::UNIMPLEMENTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("shared memory")) << method;
  }
}

TEST_F(InferServiceTest, SettingsAreToldAndNotChanged) {
  inference::TraceSettingResponse trace;
  inference::TraceSettingRequest trace_request;
  ASSERT_TRUE(Call(&Inference::Stub::TraceSetting, trace_request, &trace).ok());
  EXPECT_THAT(trace.settings().at("trace_level").value(), ElementsAre("OFF"));
  (*trace_request.mutable_settings())["trace_level"].add_value("TIMESTAMPS");
  EXPECT_EQ(Call(&Inference::Stub::TraceSetting, trace_request, &trace).error_code(),
            Code::UNIMPLEMENTED);
  inference::LogSettingsRequest log_request;
  inference::LogSettingsResponse log;
  ASSERT_TRUE(Call(&Inference::Stub::LogSettings, log_request, &log).ok());
  EXPECT_TRUE(log.settings().at("log_error").bool_param());
  (*log_request.mutable_settings())["log_info"].set_bool_param(false);
  const grpc::Status status = Call(&Inference::Stub::LogSettings, log_request, &log);
  EXPECT_EQ(status.error_code(), Code::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--log_level"));
}

TEST_F(InferServiceTest, ProbesSayOverHttpWhatTheServiceSays) {
  Readiness& readiness = server_.stop_parts().readiness;
  const auto status = [&](absl::string_view path) {
    return ProbeStatus(path, readiness, server_.registry());
  };
  const char* const yes[] = {"/v2/health/live", "/v2/health/ready",
                             "/v2/models/layer_norm_1024/ready",
                             "/v2/models/layer_norm_1024/versions/1/ready"};
  for (const char* path : yes) EXPECT_EQ(status(path), 200) << path;
  for (const char* path : {"/v2/models/nothing/ready", "/v2/models//ready", "/v2/models/../ready",
                           "/v2/models/layer_norm_1024/versions/2/ready",
                           "/v2/models/layer_norm_1024/versions/x/ready"}) {
    EXPECT_EQ(status(path), 400) << path;
  }
  for (const char* path : {"/", "", "/v2", "/v2/health", "/v2/models/layer_norm_1024",
                           "/v2/models/layer_norm_1024/infer", "/v2/models/ready",
                           "/v2/models/layer_norm_1024/versions//ready"}) {
    EXPECT_EQ(status(path), 404) << path;
  }
  readiness.Stop();
  for (const char* path : yes) EXPECT_EQ(status(path), path == yes[0] ? 200 : 400) << path;
}

}  // namespace
}  // namespace normd::testing
