#include "operations/operations.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operations/field_checks.h"
#include "operations/makers.h"

namespace normd {
namespace {

struct Entry {
  v1::ModelConfig::OperationCase operation;
  const char* name;  // As the field of ModelConfig.
  OperationMaker* make;
};

constexpr Entry kOperations[] = {
    {v1::ModelConfig::kInstanceNorm, "instance_norm", MakeInstanceNorm},
    {v1::ModelConfig::kGroupNorm, "group_norm", MakeGroupNorm},
    {v1::ModelConfig::kLayerNorm, "layer_norm", MakeLayerNorm},
    {v1::ModelConfig::kRmsNorm, "rms_norm", MakeRmsNorm},
    {v1::ModelConfig::kBatchNorm, "batch_norm", MakeBatchNorm},
    {v1::ModelConfig::kLinearNorm, "linear_norm", MakeLinearNorm},
    {v1::ModelConfig::kAddRmsNorm, "add_rms_norm", MakeAddRmsNorm},
    {v1::ModelConfig::kAddLayerNorm, "add_layer_norm", MakeAddLayerNorm},
    {v1::ModelConfig::kGatedRmsNorm, "gated_rms_norm", MakeGatedRmsNorm},
    {v1::ModelConfig::kLpNormalize, "lp_normalize", MakeLpNormalize},
    {v1::ModelConfig::kAdaptiveLayerNorm, "adaptive_layer_norm", MakeAdaptiveLayerNorm},
    {v1::ModelConfig::kAdaptiveGroupNorm, "adaptive_group_norm", MakeAdaptiveGroupNorm},
    {v1::ModelConfig::kAdaptiveInstanceNorm, "adaptive_instance_norm", MakeAdaptiveInstanceNorm},
    {v1::ModelConfig::kConditionalInstanceNorm, "conditional_instance_norm",
     MakeConditionalInstanceNorm},
    {v1::ModelConfig::kScaleNorm, "scale_norm", MakeScaleNorm},
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Operation>> MakeOperation(const v1::ModelConfig& config) {
  for (const Entry& entry : kOperations) {
    if (entry.operation != config.operation_case()) continue;
    absl::StatusOr<std::unique_ptr<Operation>> operation = entry.make(config);
    if (!operation.ok()) return operation.status();
    return std::unique_ptr<const Operation>(*std::move(operation));
  }
  const auto name = [](std::string* out, const Entry& entry) { out->append(entry.name); };
  return InvalidField("operation", "missing",
                      absl::StrCat("one of ", absl::StrJoin(kOperations, ", ", name)));
}

}  // namespace normd
