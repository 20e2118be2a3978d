#include "server/infer/infer_models.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/shape.h"
#include "google/protobuf/descriptor.h"
#include "server/metrics/metrics.h"
#include "wire/data_type.h"
#include "wire/tensor_message.h"

namespace normd {
namespace {

constexpr char kPlatform[] = "normd";

// In config.textproto's form, "group_norm".
std::string OperationName(const v1::ModelConfig& config) {
  const auto* oneof = v1::ModelConfig::descriptor()->FindOneofByName("operation");
  const auto* field = config.GetReflection()->GetOneofFieldDescriptor(config, oneof);
  return field == nullptr ? "" : field->name();
}

// The type for clients, if a model takes several.
norm::DType FirstType(const Model& model) {
  if (model.config().dtypes().empty()) return norm::DType::kFloat32;
  return FromProtocol(model.config().dtypes(0)).value_or(norm::DType::kFloat32);
}

// The protocol has no number for "any number of dimensions".
std::int64_t SizeOnWire(std::int64_t size) { return std::max(size, kAnySize); }

inference::DataType ConfigType(norm::DType dtype) {
  switch (dtype) {
    case norm::DType::kFloat32: return inference::TYPE_FP32;
    case norm::DType::kFloat64: return inference::TYPE_FP64;
    case norm::DType::kFloat16: return inference::TYPE_FP16;
    case norm::DType::kBFloat16: return inference::TYPE_BF16;
    case norm::DType::kInt8: return inference::TYPE_INT8;
    case norm::DType::kFloat8E4M3: return inference::TYPE_UINT8;  // Its bits.
    case norm::DType::kInt64: return inference::TYPE_INT64;
  }
  return inference::TYPE_INVALID;
}

void Set(inference::StatisticDuration& out, std::int64_t count, std::int64_t ns) {
  out.set_count(static_cast<std::uint64_t>(count));
  out.set_ns(static_cast<std::uint64_t>(ns));
}

void SetStatistics(const Model& model, inference::ModelStatistics& out) {
  const ModelTotals totals = model.metrics().Totals();
  out.set_name(model.name());
  out.set_version(absl::StrCat(model.version()));
  out.set_last_inference(static_cast<std::uint64_t>(totals.last_success_ms));
  out.set_inference_count(static_cast<std::uint64_t>(totals.succeeded.count));
  out.set_execution_count(static_cast<std::uint64_t>(totals.batches));
  inference::InferStatistics& stats = *out.mutable_inference_stats();
  Set(*stats.mutable_success(), totals.succeeded.count, totals.succeeded.ns);
  Set(*stats.mutable_fail(), totals.failed.count, totals.failed.ns);
  Set(*stats.mutable_queue(), totals.succeeded.count, totals.queue_ns);
  Set(*stats.mutable_compute_input(), totals.succeeded.count, totals.input_ns);
  Set(*stats.mutable_compute_infer(), totals.succeeded.count, totals.compute_ns);
  Set(*stats.mutable_compute_output(), totals.succeeded.count, totals.output_ns);
  Set(*stats.mutable_cache_hit(), 0, 0);
  Set(*stats.mutable_cache_miss(), 0, 0);
  for (const ModelTotals::Batches& batches : totals.by_size) {
    inference::InferBatchStatistics& batch = *out.add_batch_stats();
    batch.set_batch_size(static_cast<std::uint64_t>(batches.most_requests));
    Set(*batch.mutable_compute_input(), batches.count, batches.input_ns);
    Set(*batch.mutable_compute_infer(), batches.count, batches.compute_ns);
    Set(*batch.mutable_compute_output(), batches.count, batches.output_ns);
  }
}

}  // namespace

inference::ModelMetadataResponse MetadataOf(const ModelRegistry& registry, const Model& model) {
  inference::ModelMetadataResponse out;
  out.set_name(model.name());
  for (const ModelStatus& status : registry.ListOf(model.name())) {
    if (status.model != nullptr) out.add_versions(absl::StrCat(status.version));
  }
  out.set_platform(absl::StrCat(kPlatform, "_", OperationName(model.config())));
  const auto add = [&](const TensorSignature& signature, auto& tensor) {
    tensor.set_name(std::string(signature.name));
    tensor.set_datatype(std::string(NamesOf(DTypeOf(signature, FirstType(model))).inference));
    for (const std::int64_t size : signature.shape) tensor.add_shape(SizeOnWire(size));
  };
  for (const TensorSignature& input : model.inputs()) add(input, *out.add_inputs());
  // Clients ask for everything that is listed here.
  for (const TensorSignature& output : model.outputs()) {
    if (!output.on_request) add(output, *out.add_outputs());
  }
  return out;
}

inference::ModelConfig ConfigOf(const Model& model) {
  inference::ModelConfig out;
  out.set_name(model.name());
  out.set_platform(absl::StrCat(kPlatform, "_", OperationName(model.config())));
  out.set_backend(kPlatform);
  // Shapes are the whole tensors', and batches consist of requests of any shape.
  out.set_max_batch_size(0);
  out.mutable_version_policy()->mutable_specific()->add_versions(model.version());
  const auto add = [&](const TensorSignature& signature, auto& tensor) {
    tensor.set_name(std::string(signature.name));
    tensor.set_data_type(ConfigType(DTypeOf(signature, FirstType(model))));
    for (const std::int64_t size : signature.shape) tensor.add_dims(SizeOnWire(size));
  };
  for (const TensorSignature& input : model.inputs()) add(input, *out.add_input());
  std::vector<absl::string_view> on_request;
  for (const TensorSignature& output : model.outputs()) {
    if (output.on_request) {
      on_request.push_back(output.name);
    } else {
      add(output, *out.add_output());
    }
  }
  (*out.mutable_parameters())["outputs_on_request"].set_string_value(
      absl::StrJoin(on_request, ", "));
  inference::ModelDynamicBatching& batching = *out.mutable_dynamic_batching();
  batching.set_priority_levels(3);
  batching.set_default_priority_level(2);
  batching.mutable_default_queue_policy()->set_allow_timeout_override(true);
  if (model.config().batching().max_queue_delay_us() > 0) {
    batching.set_max_queue_delay_microseconds(
        static_cast<std::uint64_t>(model.config().batching().max_queue_delay_us()));
  }
  // All other information.
  (*out.mutable_parameters())["config.textproto"].set_string_value(
      model.config().ShortDebugString());
  return out;
}

void AddStatistics(const ModelRegistry& registry, inference::ModelStatisticsResponse& out) {
  for (const ModelStatus& status : registry.List()) {
    if (status.model != nullptr) SetStatistics(*status.model, *out.add_model_stats());
  }
}

absl::Status AddStatisticsOf(const ModelRegistry& registry, absl::string_view name,
                             std::int64_t version, inference::ModelStatisticsResponse& out) {
  for (const ModelStatus& status : registry.ListOf(name)) {
    if (status.model == nullptr || (version != 0 && status.version != version)) continue;
    SetStatistics(*status.model, *out.add_model_stats());
  }
  return out.model_stats_size() > 0 ? absl::OkStatus() : registry.Find(name, version).status();
}

void AddIndex(const ModelRegistry& registry, bool only_ready,
              inference::RepositoryIndexResponse& out) {
  for (const ModelStatus& status : registry.List()) {
    const bool ready = status.model != nullptr;
    if (only_ready && !ready) continue;
    auto& model = *out.add_models();
    model.set_name(status.name);
    model.set_version(absl::StrCat(status.version));
    model.set_state(ready ? "READY" : "UNAVAILABLE");
    model.set_reason(std::string(status.error.message()));
  }
}

}  // namespace normd
