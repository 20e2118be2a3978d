#include "server/rpc/infer_service.h"

#include <memory>
#include <new>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/rpc/control_messages.h"
#include "server/rpc/infer_models.h"
#include "server/rpc/infer_regions.h"
#include "server/rpc/infer_stream.h"
#include "server/rpc/normalize_call.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

using About = std::shared_ptr<const Model>;

// Checks the name and version of a model in a request.
absl::Status CheckName(const ModelRegistry& registry, const std::string& name,
                       const std::string& version, std::int64_t& number) {
  absl::Status status = CheckModelName(name);
  if (!status.ok()) return status;
  const absl::StatusOr<std::int64_t> parsed = FindVersion(registry, name, "version", version);
  if (!parsed.ok()) return parsed.status();
  number = *parsed;
  return absl::OkStatus();
}

absl::StatusOr<About> FindModel(const ModelRegistry& registry, const std::string& name,
                                const std::string& version) {
  std::int64_t number = 0;
  absl::Status status = CheckName(registry, name, version, number);
  if (!status.ok()) return status;
  return registry.Find(name, number);
}

// Checks a load or an unload: of the only repository, without parameters that would change it.
template <typename Request>
absl::Status CheckRepositoryCall(const Request& request) {
  if (!request.repository_name().empty()) {
    return absl::UnimplementedError(absl::StrCat("repository_name: \"",
                                                 Printable(request.repository_name(), 32),
                                                 "\", wanted none: the server has one repository"));
  }
  for (const auto& [key, value] : request.parameters()) {
    if (key == "unload_dependents") continue;  // No model here depends on another.
    return absl::UnimplementedError(
        absl::StrCat("parameters[\"", Printable(key, 32),
                     "\"], wanted none: the repository's files alone say what a model is"));
  }
  return CheckModelName(request.model_name());
}

template <typename Settings>
absl::Status CheckNoSettings(const Settings& settings, absl::string_view why) {
  for (const auto& [key, value] : settings) {
    if (value.ByteSizeLong() == 0) continue;  // Asks only for the value.
    return absl::UnimplementedError(
        absl::StrCat("settings[\"", Printable(key, 32), "\"] cannot be changed: ", why));
  }
  return absl::OkStatus();
}

}  // namespace

InferService::InferService(CallEnvironment& environment, const Readiness& readiness,
                           const ServerInfo& info)
    : environment_(environment), readiness_(readiness), info_(info) {}

template <typename Request, typename Response, typename Body>
InferService::Unary* InferService::Control(Context* context, Method method, const Bytes* request,
                                           Bytes* response, Body body, TaskThread* thread) {
  return BeginControl<Request, Response>(environment_, *context, method, *request, *response, body,
                                         thread);
}

InferService::Unary* InferService::ModelInfer(Context* context, const Bytes* request,
                                              Bytes* response) {
  return NormalizeCall::Begin(environment_, *context, Method::kModelInfer,
                              {*request, *response, codec_});
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferService::ModelStreamInfer(
    Context* context) {
  try {
    const std::shared_ptr<InferStream> stream = InferStream::Create(environment_, *context);
    stream->Start();
    return stream.get();  // It keeps itself until gRPC is done with it.
  } catch (const std::bad_alloc&) {
    // As NormService::NormalizeStream.
    return nullptr;
  }
}

InferService::Unary* InferService::ServerLive(Context* context, const Bytes* request,
                                              Bytes* response) {
  return Control<inference::ServerLiveRequest, inference::ServerLiveResponse>(
      context, Method::kServerLive, request, response,
      [](const auto&, inference::ServerLiveResponse& answer, About&) {
        answer.set_live(true);
        return absl::OkStatus();
      });
}

InferService::Unary* InferService::ServerReady(Context* context, const Bytes* request,
                                               Bytes* response) {
  return Control<inference::ServerReadyRequest, inference::ServerReadyResponse>(
      context, Method::kServerReady, request, response,
      [this](const auto&, inference::ServerReadyResponse& answer, About&) {
        answer.set_ready(readiness_.ready());
        return absl::OkStatus();
      });
}

InferService::Unary* InferService::ModelReady(Context* context, const Bytes* request,
                                              Bytes* response) {
  return Control<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      context, Method::kModelReady, request, response,
      [this](const inference::ModelReadyRequest& wanted, inference::ModelReadyResponse& answer,
             About& about) {
        std::int64_t version = 0;
        const ModelRegistry& registry = environment_.accept.registry;
        absl::Status status = CheckName(registry, wanted.name(), wanted.version(), version);
        if (absl::IsNotFound(status)) return absl::OkStatus();  // No such alias.
        if (!status.ok()) return status;
        auto model = registry.Find(wanted.name(), version);
        answer.set_ready(model.ok() && readiness_.ready());
        if (model.ok()) about = *std::move(model);
        return absl::OkStatus();
      });
}

InferService::Unary* InferService::ServerMetadata(Context* context, const Bytes* request,
                                                  Bytes* response) {
  return Control<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
      context, Method::kServerMetadata, request, response,
      [this](const auto&, inference::ServerMetadataResponse& answer, About&) {
        answer.set_name("normd");
        answer.set_version(info_.version);
        for (const char* extension : {"binary_tensor_data", "model_configuration",
                                      "model_repository", "model_repository(unload_dependents)",
                                      "parameters", "schedule_policy", "statistics"}) {
          answer.add_extensions(extension);
        }
        // The protocol has no extension for regions by descriptor.
        const RegionRegistry* const regions = environment_.accept.regions;
        if (regions == nullptr) return absl::OkStatus();
        if (regions->takes_names()) answer.add_extensions("system_shared_memory");
        if (regions->takes_devices()) answer.add_extensions("cuda_shared_memory");
        return absl::OkStatus();
      });
}

InferService::Unary* InferService::ModelMetadata(Context* context, const Bytes* request,
                                                 Bytes* response) {
  return Control<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
      context, Method::kModelMetadata, request, response,
      [this](const inference::ModelMetadataRequest& wanted,
             inference::ModelMetadataResponse& answer, About& about) {
        const ModelRegistry& registry = environment_.accept.registry;
        auto model = FindModel(registry, wanted.name(), wanted.version());
        if (!model.ok()) return model.status();
        answer = MetadataOf(registry, **model);
        about = *std::move(model);
        return absl::OkStatus();
      });
}

InferService::Unary* InferService::ModelConfig(Context* context, const Bytes* request,
                                               Bytes* response) {
  return Control<inference::ModelConfigRequest, inference::ModelConfigResponse>(
      context, Method::kModelConfig, request, response,
      [this](const inference::ModelConfigRequest& wanted, inference::ModelConfigResponse& answer,
             About& about) {
        auto model = FindModel(environment_.accept.registry, wanted.name(), wanted.version());
        if (!model.ok()) return model.status();
        *answer.mutable_config() = ConfigOf(**model);
        about = *std::move(model);
        return absl::OkStatus();
      });
}

InferService::Unary* InferService::ModelStatistics(Context* context, const Bytes* request,
                                                   Bytes* response) {
  return Control<inference::ModelStatisticsRequest, Bytes>(
      context, Method::kModelStatistics, request, response,
      [this](const inference::ModelStatisticsRequest& wanted, Bytes& answer, About&,
             const ControlCall& call) {
        const ModelRegistry& registry = environment_.accept.registry;
        if (wanted.name().empty()) {
          return statistics_.Get(
              std::nullopt, call.arrival(), environment_.accept.clock,
              [&registry](auto& list) { AddStatistics(registry, list); }, answer);
        }
        std::int64_t version = 0;
        absl::Status status = CheckName(registry, wanted.name(), wanted.version(), version);
        inference::ModelStatisticsResponse one;
        if (status.ok()) status = AddStatisticsOf(registry, wanted.name(), version, one);
        return status.ok() ? Serialize(one, answer) : status;
      },
      &environment_.lists);
}

InferService::Unary* InferService::RepositoryIndex(Context* context, const Bytes* request,
                                                   Bytes* response) {
  return Control<inference::RepositoryIndexRequest, Bytes>(
      context, Method::kRepositoryIndex, request, response,
      [this](const inference::RepositoryIndexRequest& wanted, Bytes& answer, About&,
             const ControlCall& call) -> absl::Status {
        if (!wanted.repository_name().empty()) {
          return absl::UnimplementedError(
              absl::StrCat("repository_name: \"", Printable(wanted.repository_name(), 32),
                           "\", wanted none: the server has one repository"));
        }
        const ModelRegistry& registry = environment_.accept.registry;
        return (wanted.ready() ? ready_index_ : index_)
            .Get(
                registry.changes(), call.arrival(), environment_.accept.clock,
                [&](auto& list) { AddIndex(registry, wanted.ready(), list); }, answer);
      },
      &environment_.lists);
}

InferService::Unary* InferService::RepositoryModelLoad(Context* context, const Bytes* request,
                                                       Bytes* response) {
  return Control<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>(
      context, Method::kRepositoryModelLoad, request, response,
      [this](const inference::RepositoryModelLoadRequest& wanted, auto&, About& about) {
        absl::Status status = CheckRepositoryCall(wanted);
        if (!status.ok()) return status;
        const auto loaded = environment_.accept.registry.Load(wanted.model_name(), 0);
        if (!loaded.ok()) return loaded.status();
        about = loaded->model;
        return absl::OkStatus();
      },
      &environment_.loads);
}

InferService::Unary* InferService::RepositoryModelUnload(Context* context, const Bytes* request,
                                                         Bytes* response) {
  return Control<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse>(
      context, Method::kRepositoryModelUnload, request, response,
      [this](const inference::RepositoryModelUnloadRequest& wanted, auto&, About&) {
        absl::Status status = CheckRepositoryCall(wanted);
        if (!status.ok()) return status;
        return environment_.accept.registry.Unload(wanted.model_name(), 0).status();
      },
      &environment_.loads);
}

InferService::Unary* InferService::SystemSharedMemoryStatus(Context* context, const Bytes* request,
                                                            Bytes* response) {
  return Control<inference::SystemSharedMemoryStatusRequest,
                 inference::SystemSharedMemoryStatusResponse>(
      context, Method::kSharedMemoryStatus, request, response,
      [this](const inference::SystemSharedMemoryStatusRequest& wanted,
             inference::SystemSharedMemoryStatusResponse& answer, About&, const ControlCall& call) {
        return AddRegions(environment_.accept.regions, call.owner(), wanted.name(), answer);
      },
      &environment_.lists);
}

namespace {

// Its end is a call's end.
class EndsWithIt {
 public:
  explicit EndsWithIt(std::shared_ptr<ControlCall::LateEnd> call) : call_(std::move(call)) {}
  ~EndsWithIt() { call_->End(absl::OkStatus()); }
  EndsWithIt(const EndsWithIt&) = delete;
  EndsWithIt& operator=(const EndsWithIt&) = delete;

 private:
  const std::shared_ptr<ControlCall::LateEnd> call_;  // shared: with the call.
};

}  // namespace

InferService::Unary* InferService::SystemSharedMemoryRegister(Context* context,
                                                              const Bytes* request,
                                                              Bytes* response) {
  return Control<inference::SystemSharedMemoryRegisterRequest,
                 inference::SystemSharedMemoryRegisterResponse>(
      context, Method::kSharedMemoryRegister, request, response,
      [this](const inference::SystemSharedMemoryRegisterRequest& wanted, auto&, About&,
             ControlCall& call) {
        // Half of the call's time, so that a registered region is not reported as late.
        const TimePoint by = call.deadline() == kNever
                                 ? kNever
                                 : call.arrival() + (call.deadline() - call.arrival()) / 2;
        LockWait wait{std::make_shared<EndsWithIt>(call.EndLater()), by};
        return RegisterRegion(environment_.accept.regions, call.owner(), wanted, std::move(wait));
      });
}

// For both kinds of region: their messages have the same fields.
template <typename Request, typename Response>
InferService::Unary* InferService::UnregisterKind(Context* context, const Bytes* request,
                                                  Bytes* response, RegionKind kind) {
  const Method method =
      kind == RegionKind::kDevice ? Method::kCudaSharedMemory : Method::kSharedMemoryUnregister;
  return Control<Request, Response>(
      context, method, request, response,
      [this, context, kind](const Request& wanted, auto&, About&, ControlCall& call) {
        const absl::StatusOr<Unregistering> how = UnregisteringOf(*context);
        if (!how.ok()) return how.status();
        std::shared_ptr<void> until_gone;
        if (*how == Unregistering::kWait) {
          until_gone = std::make_shared<EndsWithIt>(call.EndLater());
        }
        return UnregisterRegions(environment_.accept.regions, {call.owner(), wanted.name(), kind},
                                 *how, until_gone);
      });
}

InferService::Unary* InferService::SystemSharedMemoryUnregister(Context* context,
                                                                const Bytes* request,
                                                                Bytes* response) {
  return UnregisterKind<inference::SystemSharedMemoryUnregisterRequest,
                        inference::SystemSharedMemoryUnregisterResponse>(context, request, response,
                                                                         RegionKind::kNamed);
}

InferService::Unary* InferService::CudaSharedMemoryStatus(Context* context, const Bytes* request,
                                                          Bytes* response) {
  return Control<inference::CudaSharedMemoryStatusRequest,
                 inference::CudaSharedMemoryStatusResponse>(
      context, Method::kCudaSharedMemory, request, response,
      [this](const inference::CudaSharedMemoryStatusRequest& wanted,
             inference::CudaSharedMemoryStatusResponse& answer, About&, const ControlCall& call) {
        return AddRegions(environment_.accept.regions, call.owner(), wanted.name(), answer);
      },
      &environment_.lists);
}

InferService::Unary* InferService::CudaSharedMemoryRegister(Context* context, const Bytes* request,
                                                            Bytes* response) {
  return Control<inference::CudaSharedMemoryRegisterRequest,
                 inference::CudaSharedMemoryRegisterResponse>(
      context, Method::kCudaSharedMemory, request, response,
      [this](const inference::CudaSharedMemoryRegisterRequest& wanted, auto&, About&,
             const ControlCall& call) {
        return RegisterRegion(environment_.accept.regions, call.owner(), wanted);
      });
}

InferService::Unary* InferService::CudaSharedMemoryUnregister(Context* context,
                                                              const Bytes* request,
                                                              Bytes* response) {
  return UnregisterKind<inference::CudaSharedMemoryUnregisterRequest,
                        inference::CudaSharedMemoryUnregisterResponse>(context, request, response,
                                                                       RegionKind::kDevice);
}

InferService::Unary* InferService::TraceSetting(Context* context, const Bytes* request,
                                                Bytes* response) {
  return Control<inference::TraceSettingRequest, inference::TraceSettingResponse>(
      context, Method::kTraceSetting, request, response,
      [](const inference::TraceSettingRequest& wanted, inference::TraceSettingResponse& answer,
         About&) -> absl::Status {
        absl::Status status = CheckNoSettings(
            wanted.settings(), "the server writes no traces; its request log is set by flags");
        if (!status.ok()) return status;
        (*answer.mutable_settings())["trace_level"].add_value("OFF");
        return absl::OkStatus();
      });
}

InferService::Unary* InferService::LogSettings(Context* context, const Bytes* request,
                                               Bytes* response) {
  return Control<inference::LogSettingsRequest, inference::LogSettingsResponse>(
      context, Method::kLogSettings, request, response,
      [](const inference::LogSettingsRequest& wanted, inference::LogSettingsResponse& answer,
         About&) -> absl::Status {
        absl::Status status = CheckNoSettings(wanted.settings(), "the flag --log_level sets it");
        if (!status.ok()) return status;
        auto& settings = *answer.mutable_settings();
        settings["log_file"].set_string_param("");  // Standard error.
        settings["log_format"].set_string_param("default");
        settings["log_error"].set_bool_param(spdlog::should_log(spdlog::level::err));
        settings["log_warning"].set_bool_param(spdlog::should_log(spdlog::level::warn));
        settings["log_info"].set_bool_param(spdlog::should_log(spdlog::level::info));
        settings["log_verbose_level"].set_uint32_param(0);
        return absl::OkStatus();
      });
}

}  // namespace normd
