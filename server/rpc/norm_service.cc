#include "server/rpc/norm_service.h"

#include <utility>

#include "normd/v1/norm_service.grpc.pb.h"
#include "server/rpc/driven_stream.h"
#include "server/rpc/normalize_call.h"
#include "server/rpc/stream_call.h"
#include "wire/tensor_message.h"

namespace normd {
namespace {

void AddTensors(absl::Span<const TensorSignature> tensors,
                google::protobuf::RepeatedPtrField<v1::TensorInfo>& out) {
  for (const TensorSignature& tensor : tensors) {
    v1::TensorInfo& info = *out.Add();
    info.set_name(std::string(tensor.name));
    info.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    if (tensor.dtype) info.set_dtype(ToProtocol(*tensor.dtype));
    if (tensor.dtype_of_float64) info.set_dtype_of_float64(ToProtocol(*tensor.dtype_of_float64));
    info.set_on_request(tensor.on_request);
    info.set_values(tensor.values);
  }
}

v1::ModelInfo ToInfo(const ModelStatus& status) {
  v1::ModelInfo info;
  info.set_name(status.name);
  info.set_version(status.version);
  info.set_state(status.model != nullptr ? v1::ModelInfo::READY : v1::ModelInfo::FAILED);
  info.set_error(std::string(status.error.message()));
  info.set_load_ns(status.load_time.count());
  if (status.model == nullptr) return info;
  *info.mutable_config() = status.model->config();
  for (const Parameter& parameter : status.model->parameters()) {
    v1::Parameter& out = *info.add_parameters();
    out.set_name(parameter.name);
    out.set_dtype(ToProtocol(parameter.dtype));
    for (const std::int64_t dim : parameter.shape.dims()) out.add_shape(dim);
  }
  AddTensors(status.model->inputs(), *info.mutable_inputs());
  AddTensors(status.model->outputs(), *info.mutable_outputs());
  return info;
}

v1::SharedMemoryInfo::Kind ToKind(RegionKind kind) {
  switch (kind) {
    case RegionKind::kNamed: return v1::SharedMemoryInfo::NAMED;
    case RegionKind::kDescriptor: return v1::SharedMemoryInfo::DESCRIPTOR;
    case RegionKind::kDevice: return v1::SharedMemoryInfo::DEVICE;
  }
  return v1::SharedMemoryInfo::KIND_UNSPECIFIED;
}

v1::SharedMemoryInfo ToInfo(const ListedRegion& listed, TimePoint now) {
  const RegionFacts& facts = listed.facts;
  v1::SharedMemoryInfo info;
  info.set_kind(ToKind(facts.kind));
  info.set_owner(facts.owner);
  if (facts.kind != RegionKind::kDescriptor) {
    info.set_name(facts.name);
    info.set_key(facts.key);
  }
  if (!facts.place.OnHost()) info.set_device(facts.place.device);
  info.set_offset(facts.offset);
  info.set_byte_size(facts.bytes);
  info.set_writable(facts.writable);
  info.set_age_ns((now - facts.registered).count());
  info.set_in_use(listed.in_use);
  info.set_broken(listed.broken);
  info.set_page_locked(listed.page_locked);
  return info;
}

}  // namespace

NormService::NormService(CallEnvironment& environment, const Readiness& readiness, ServerInfo info)
    : RawService(v1::NormService::service_full_name()),
      environment_(environment),
      readiness_(readiness),
      info_(std::move(info)),
      started_(environment.accept.clock.Now()) {
  AddUnary("Normalize", [this](Context* context, const Bytes* request, Bytes* response) {
    return NormalizeCall::Begin(environment_, *context, Method::kNormalize,
                                {*request, *response, codec_});
  });
  AddStream("NormalizeStream", [this](Context* context) {
    return BeginStream<StreamCall>(environment_.options, environment_.accept, *context);
  });
  AddControl(environment, {"ListModels", Method::kListModels, ControlPlace::kLists},
             &NormService::ListModels);
  AddControl(environment, {"GetModel", Method::kGetModel}, &NormService::GetModel);
  AddControl(environment, {"LoadModel", Method::kLoadModel, ControlPlace::kLoads},
             &NormService::LoadModel);
  AddControl(environment, {"UnloadModel", Method::kUnloadModel, ControlPlace::kLoads},
             &NormService::UnloadModel);
  AddControl(environment, {"GetServerInfo", Method::kGetServerInfo}, &NormService::GetServerInfo);
  AddControl(environment, {"ListSharedMemory", Method::kListSharedMemory, ControlPlace::kLists},
             &NormService::ListSharedMemory);
}

absl::Status NormService::ListModels(const v1::ListModelsRequest& /*wanted*/,
                                     grpc::ByteBuffer& answer, ControlCall& call) {
  const ModelRegistry& registry = environment_.accept.registry;
  const auto fill = [&registry](v1::ListModelsResponse& list) {
    for (const ModelStatus& status : registry.List()) *list.add_models() = ToInfo(status);
  };
  return models_.Get(registry.changes(), call.arrival(), environment_.accept.clock, fill, answer);
}

absl::Status NormService::GetModel(const v1::GetModelRequest& wanted, v1::GetModelResponse& answer,
                                   ControlCall& call) {
  absl::Status name = CheckModelName(wanted.model());
  if (!name.ok()) return name;
  const auto status = environment_.accept.registry.Get(wanted.model(), wanted.version());
  if (!status.ok()) return status.status();
  call.SetModel(status->model);
  *answer.mutable_model() = ToInfo(*status);
  return absl::OkStatus();
}

absl::Status NormService::LoadModel(const v1::LoadModelRequest& wanted,
                                    v1::LoadModelResponse& answer, ControlCall& call) {
  absl::Status name = CheckModelName(wanted.model());
  if (!name.ok()) return name;
  const auto status = environment_.accept.registry.Load(wanted.model(), wanted.version());
  if (!status.ok()) return status.status();
  call.SetModel(status->model);
  *answer.mutable_model() = ToInfo(*status);
  return absl::OkStatus();
}

absl::Status NormService::UnloadModel(const v1::UnloadModelRequest& wanted,
                                      v1::UnloadModelResponse& answer, ControlCall& /*call*/) {
  absl::Status name = CheckModelName(wanted.model());
  if (!name.ok()) return name;
  const auto versions = environment_.accept.registry.Unload(wanted.model(), wanted.version());
  if (!versions.ok()) return versions.status();
  for (const std::int64_t version : *versions) answer.add_versions(version);
  return absl::OkStatus();
}

absl::Status NormService::GetServerInfo(const v1::GetServerInfoRequest& /*wanted*/,
                                        v1::GetServerInfoResponse& answer, ControlCall& /*call*/) {
  answer.set_version(info_.version);
  answer.set_cuda(info_.cuda);
  answer.set_simd(info_.simd);
  for (const std::string& lane : info_.lanes) answer.add_lanes(lane);
  answer.set_max_request_bytes(environment_.accept.limits.max_request_bytes);
  answer.set_max_inflight_bytes(info_.max_inflight_bytes);
  answer.set_uptime_ns((environment_.accept.clock.Now() - started_).count());
  answer.set_ready(readiness_.ready());
  answer.set_shared_memory_listen(info_.shared_memory_listen);
  return absl::OkStatus();
}

absl::Status NormService::ListSharedMemory(const v1::ListSharedMemoryRequest& /*wanted*/,
                                           v1::ListSharedMemoryResponse& answer,
                                           ControlCall& /*call*/) {
  if (environment_.accept.regions == nullptr) return absl::OkStatus();
  const TimePoint now = environment_.accept.clock.Now();
  for (const ListedRegion& listed : environment_.accept.regions->ListAll()) {
    *answer.add_regions() = ToInfo(listed, now);
  }
  return absl::OkStatus();
}

}  // namespace normd
