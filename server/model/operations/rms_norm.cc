#include "server/model/operations/rms_norm.h"

#include <limits>

#include "server/model/field_checks.h"
#include "server/model/operations/normalized_shape_norm.h"

namespace normd {
namespace {

class RmsNorm final : public NormalizedShapeNorm {
 public:
  RmsNorm(const v1::ModelConfig& config, const norm::NormSpec& spec)
      : NormalizedShapeNorm(config, spec, {IsAffine(config.rms_norm()), false, false},
                            config.rms_norm().normalized_shape()),
        has_eps_(config.rms_norm().has_eps()) {}

 private:
  // When absent, the machine epsilon of the type in which PyTorch computes the statistics.
  double EpsFor(norm::DType dtype) const override {
    if (has_eps_) return spec().eps;
    return dtype == norm::DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                                          : std::numeric_limits<float>::epsilon();
  }

  const bool has_eps_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeRmsNorm(const v1::ModelConfig& config) {
  const v1::RmsNorm& message = config.rms_norm();
  absl::Status status = CheckNormalizedShape("rms_norm", message.normalized_shape());
  if (status.ok()) status = CheckEps("rms_norm", message);
  if (!status.ok()) return status;
  norm::NormSpec spec =
      norm::RmsNormSpec(ElementsOf(message.normalized_shape()), norm::DType::kFloat32);
  spec.eps = EpsOf(message);
  return std::make_unique<RmsNorm>(config, spec);
}

}  // namespace normd
