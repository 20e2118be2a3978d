#include "server/infer/infer_methods.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/infer/infer_description.h"
#include "server/infer/infer_models.h"
#include "server/infer/infer_regions.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

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

absl::StatusOr<std::shared_ptr<const Model>> FindModel(const ModelRegistry& registry,
                                                       const std::string& name,
                                                       const std::string& version) {
  std::int64_t number = 0;
  absl::Status status = CheckName(registry, name, version, number);
  if (!status.ok()) return status;
  return registry.Find(name, number);
}

absl::Status CheckRepository(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("repository_name: \"", Printable(name, 32),
                                               "\", wanted none: the server has one repository"));
}

// Checks a load or an unload: of the only repository, without parameters that would change it.
template <typename Request>
absl::Status CheckRepositoryCall(const Request& request) {
  absl::Status status = CheckRepository(request.repository_name());
  if (!status.ok()) return status;
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

absl::Status InferMethods::ServerLive(const inference::ServerLiveRequest&,
                                      inference::ServerLiveResponse& answer, ControlCall&) const {
  answer.set_live(true);
  return absl::OkStatus();
}

absl::Status InferMethods::ServerReady(const inference::ServerReadyRequest&,
                                       inference::ServerReadyResponse& answer, ControlCall&) const {
  answer.set_ready(ready_());
  return absl::OkStatus();
}

absl::Status InferMethods::ModelReady(const inference::ModelReadyRequest& wanted,
                                      inference::ModelReadyResponse& answer,
                                      ControlCall& call) const {
  std::int64_t version = 0;
  absl::Status status = CheckName(environment_.registry, wanted.name(), wanted.version(), version);
  if (absl::IsNotFound(status)) return absl::OkStatus();  // No such alias.
  if (!status.ok()) return status;
  auto model = environment_.registry.Find(wanted.name(), version);
  answer.set_ready(model.ok() && ready_());
  if (model.ok()) call.SetModel(*std::move(model));
  return absl::OkStatus();
}

absl::Status InferMethods::ServerMetadata(const inference::ServerMetadataRequest&,
                                          inference::ServerMetadataResponse& answer,
                                          ControlCall&) const {
  answer.set_name("normd");
  answer.set_version(version_);
  for (const char* extension :
       {"binary_tensor_data", "model_configuration", "model_repository",
        "model_repository(unload_dependents)", "parameters", "schedule_policy", "statistics"}) {
    answer.add_extensions(extension);
  }
  // The protocol has no extension for regions by descriptor.
  const RegionRegistry* const regions = environment_.regions;
  if (regions == nullptr) return absl::OkStatus();
  if (regions->takes_names()) answer.add_extensions("system_shared_memory");
  if (regions->takes_devices()) answer.add_extensions("cuda_shared_memory");
  return absl::OkStatus();
}

absl::Status InferMethods::ModelMetadata(const inference::ModelMetadataRequest& wanted,
                                         inference::ModelMetadataResponse& answer,
                                         ControlCall& call) const {
  auto model = FindModel(environment_.registry, wanted.name(), wanted.version());
  if (!model.ok()) return model.status();
  answer = MetadataOf(environment_.registry, **model);
  call.SetModel(*std::move(model));
  return absl::OkStatus();
}

absl::Status InferMethods::ModelConfig(const inference::ModelConfigRequest& wanted,
                                       inference::ModelConfigResponse& answer,
                                       ControlCall& call) const {
  auto model = FindModel(environment_.registry, wanted.name(), wanted.version());
  if (!model.ok()) return model.status();
  *answer.mutable_config() = ConfigOf(**model);
  call.SetModel(*std::move(model));
  return absl::OkStatus();
}

absl::Status InferMethods::ModelStatistics(const inference::ModelStatisticsRequest& wanted,
                                           inference::ModelStatisticsResponse& answer,
                                           ControlCall&) const {
  const ModelRegistry& registry = environment_.registry;
  if (wanted.name().empty()) {
    AddStatistics(registry, answer);
    return absl::OkStatus();
  }
  std::int64_t version = 0;
  absl::Status status = CheckName(registry, wanted.name(), wanted.version(), version);
  return status.ok() ? AddStatisticsOf(registry, wanted.name(), version, answer) : status;
}

absl::Status InferMethods::CheckIndex(const inference::RepositoryIndexRequest& wanted) {
  return CheckRepository(wanted.repository_name());
}

absl::Status InferMethods::RepositoryIndex(const inference::RepositoryIndexRequest& wanted,
                                           inference::RepositoryIndexResponse& answer,
                                           ControlCall&) const {
  if (absl::Status status = CheckIndex(wanted); !status.ok()) return status;
  AddIndex(environment_.registry, wanted.ready(), answer);
  return absl::OkStatus();
}

absl::Status InferMethods::Load(const inference::RepositoryModelLoadRequest& wanted,
                                inference::RepositoryModelLoadResponse&, ControlCall& call) const {
  if (absl::Status status = CheckRepositoryCall(wanted); !status.ok()) return status;
  const auto loaded = environment_.registry.Load(wanted.model_name(), 0);
  if (!loaded.ok()) return loaded.status();
  call.SetModel(loaded->model);
  return absl::OkStatus();
}

absl::Status InferMethods::Unload(const inference::RepositoryModelUnloadRequest& wanted,
                                  inference::RepositoryModelUnloadResponse&, ControlCall&) const {
  if (absl::Status status = CheckRepositoryCall(wanted); !status.ok()) return status;
  return environment_.registry.Unload(wanted.model_name(), 0).status();
}

absl::Status InferMethods::SystemStatus(const inference::SystemSharedMemoryStatusRequest& wanted,
                                        inference::SystemSharedMemoryStatusResponse& answer,
                                        ControlCall& call) const {
  return AddRegions(environment_.regions, call.owner(), wanted.name(), answer);
}

absl::Status InferMethods::SystemRegister(
    const inference::SystemSharedMemoryRegisterRequest& wanted,
    inference::SystemSharedMemoryRegisterResponse&, ControlCall& call) const {
  // Half of the call's time, so that a registered region is not reported as late.
  const TimePoint by =
      call.deadline() == kNever ? kNever : call.arrival() + (call.deadline() - call.arrival()) / 2;
  LockWait wait{std::make_shared<EndsWithIt>(call.EndLater()), by};
  return RegisterRegion(environment_.regions, call.owner(), wanted, std::move(wait));
}

absl::Status InferMethods::Unregister(const std::string& name, RegionKind kind,
                                      ControlCall& call) const {
  const absl::StatusOr<Unregistering> how = UnregisteringOf(call.Metadata(kInUse));
  if (!how.ok()) return how.status();
  std::shared_ptr<void> until_gone;
  if (*how == Unregistering::kWait) until_gone = std::make_shared<EndsWithIt>(call.EndLater());
  return UnregisterRegions(environment_.regions, {call.owner(), name, kind}, *how, until_gone);
}

absl::Status InferMethods::SystemUnregister(
    const inference::SystemSharedMemoryUnregisterRequest& wanted,
    inference::SystemSharedMemoryUnregisterResponse&, ControlCall& call) const {
  return Unregister(wanted.name(), RegionKind::kNamed, call);
}

absl::Status InferMethods::CudaStatus(const inference::CudaSharedMemoryStatusRequest& wanted,
                                      inference::CudaSharedMemoryStatusResponse& answer,
                                      ControlCall& call) const {
  return AddRegions(environment_.regions, call.owner(), wanted.name(), answer);
}

absl::Status InferMethods::CudaRegister(const inference::CudaSharedMemoryRegisterRequest& wanted,
                                        inference::CudaSharedMemoryRegisterResponse&,
                                        ControlCall& call) const {
  return RegisterRegion(environment_.regions, call.owner(), wanted);
}

absl::Status InferMethods::CudaUnregister(
    const inference::CudaSharedMemoryUnregisterRequest& wanted,
    inference::CudaSharedMemoryUnregisterResponse&, ControlCall& call) const {
  return Unregister(wanted.name(), RegionKind::kDevice, call);
}

absl::Status InferMethods::TraceSetting(const inference::TraceSettingRequest& wanted,
                                        inference::TraceSettingResponse& answer,
                                        ControlCall&) const {
  absl::Status status = CheckNoSettings(
      wanted.settings(), "the server writes no traces; its request log is set by flags");
  if (!status.ok()) return status;
  (*answer.mutable_settings())["trace_level"].add_value("OFF");
  return absl::OkStatus();
}

absl::Status InferMethods::LogSettings(const inference::LogSettingsRequest& wanted,
                                       inference::LogSettingsResponse& answer, ControlCall&) const {
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
}

}  // namespace normd
