#include "operations/makers.h"

#include <cmath>

#include "operations/axes_norm.h"
#include "operations/field_checks.h"

namespace normd {
namespace {

constexpr double kDefaultP = 2;
constexpr double kDefaultNormEps = 1e-12;

absl::StatusOr<norm::Statistics> StatisticsOf(const v1::LpNormalize& message) {
  const double p = message.has_p() ? message.p() : kDefaultP;
  if (p == 1) return norm::Statistics::kSumOfAbsolutes;
  if (p == 2) return norm::Statistics::kRootOfSquares;
  if (std::isinf(p) && p > 0) return norm::Statistics::kLargestAbsolute;
  return InvalidField("lp_normalize.p", absl::StrCat(p), "1, 2 or inf");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeLpNormalize(const v1::ModelConfig& config) {
  const v1::LpNormalize& message = config.lp_normalize();
  absl::Status status = CheckNormalizedShape("lp_normalize", message.normalized_shape());
  if (status.ok()) status = CheckEps("lp_normalize", message);
  if (!status.ok()) return status;
  const absl::StatusOr<norm::Statistics> statistics = StatisticsOf(message);
  if (!statistics.ok()) return statistics.status();
  NormCase norm;
  norm.spec = norm::RmsNormSpec(ElementsOf(message.normalized_shape()), norm::DType::kFloat32);
  norm.spec.statistics = *statistics;
  norm.spec.eps = EpsOf(message, kDefaultNormEps);
  return MakeNormOverAxes("lp_normalize", config, message, norm);
}

}  // namespace normd
