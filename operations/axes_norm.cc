#include "operations/axes_norm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/shape.h"
#include "operations/field_checks.h"
#include "operations/makers.h"

namespace normd {
namespace {

bool ContinuesRun(const std::vector<int>& axes, std::size_t i) {
  return i > 0 && axes[i] == axes[i - 1] + 1;
}

std::size_t RunsOf(const std::vector<int>& axes) {
  std::size_t runs = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) runs += ContinuesRun(axes, i) ? 0 : 1;
  return runs;
}

NormCase OverPositions(NormCase norm, absl::Span<const std::int64_t> normalized,
                       const std::vector<int>& axes) {
  norm.spec.rows = norm::Rows::kPosition;
  if (RunsOf(axes) == 1) return norm;
  norm.spec.layout = norm::Layout::kMixedRuns;
  norm.spec.channel_runs.fill(1);
  std::size_t run = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0 && !ContinuesRun(axes, i)) ++run;
    norm.spec.channel_runs[run] *= normalized[i];
  }
  return norm;
}

// The pattern with `normalized` at the axes.
ShapePattern PatternOf(absl::Span<const std::int64_t> normalized, const std::vector<int>& axes) {
  const bool from_end = axes.front() < 0;
  ShapePattern pattern;
  if (from_end) pattern.push_back(kAnyDimensions);
  std::size_t next = 0;
  for (int axis = from_end ? axes.front() : 0; axis <= (from_end ? -1 : axes.back()); ++axis) {
    const bool is_normalized = next < axes.size() && axes[next] == axis;
    pattern.push_back(is_normalized ? normalized[next++] : kAnySize);
  }
  if (!from_end) pattern.push_back(kAnyDimensions);
  return pattern;
}

}  // namespace

AxesNorm::AxesNorm(const v1::ModelConfig& config, const NormCase& norm,
                   absl::Span<const std::int64_t> normalized, std::vector<int> axes)
    : NormOperation(config, OverPositions(norm, normalized, axes),
                    Shape::Create(normalized).value_or(Shape()),
                    {PatternOf(normalized, axes),
                     PatternOf(std::vector<std::int64_t>(normalized.size(), 1), axes)}),
      normalized_(Shape::Create(normalized).value_or(Shape())),
      axes_(std::move(axes)) {}

int AxesNorm::AxisIn(const Shape& x, std::size_t i) const {
  return axes_[i] < 0 ? x.rank() + axes_[i] : axes_[i];
}

absl::Status AxesNorm::Divide(const Shape& x, Geometry& geometry) const {
  const auto wanted = [this] { return PatternText(signature().inputs.front().shape); };
  const int first = AxisIn(x, 0);
  if (first < 0 || AxisIn(x, axes_.size() - 1) >= x.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", x.ToString(), " has ", x.rank(),
                                                   x.rank() == 1 ? " dimension" : " dimensions",
                                                   ", wanted ", wanted()));
  }
  norm::RunSizes runs;
  runs.fill(1);
  std::size_t run = 0;
  std::size_t next = 0;
  // Dimensions that count samples may be 0: the first, or all unnumbered ones in front.
  const int counting = axes_.front() < 0 ? first : 1;
  for (int i = 0; i < x.rank(); ++i) {
    const bool normalized = next < axes_.size() && i == AxisIn(x, next);
    if (normalized ? x.dim(i) != normalized_.dim(static_cast<int>(next))
                   : i >= counting && x.dim(i) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape[", i, "]: ", x.dim(i), " in ", x.ToString(), ", wanted ",
                       normalized ? wanted() : std::string("at least 1")));
    }
    if (!normalized && i > first) runs[run] *= x.dim(i);
    if (!normalized) continue;
    if (next > 0 && !ContinuesRun(axes_, next)) ++run;
    ++next;
  }
  geometry.samples = x.Product(0, first);
  geometry.spatial = 1;
  for (const std::int64_t size : runs) geometry.spatial *= size;
  if (spec().layout == norm::Layout::kMixedRuns) geometry.spatial_runs = runs;
  return absl::OkStatus();
}

// The normalized dimensions have size 1.
NormOperation::Dims AxesNorm::RowDims(const Shape& x) const {
  Dims dims(x.dims().begin(), x.dims().end());
  for (std::size_t i = 0; i < axes_.size(); ++i) dims[static_cast<std::size_t>(AxisIn(x, i))] = 1;
  return dims;
}

absl::StatusOr<std::vector<int>> CheckAxes(absl::string_view operation,
                                           absl::Span<const std::int64_t> axes,
                                           absl::Span<const std::int64_t> normalized) {
  if (axes.empty()) return std::vector<int>();
  const std::string field = absl::StrCat(operation, ".axes");
  const auto all = [&] { return absl::StrCat("[", absl::StrJoin(axes, ", "), "]"); };
  if (axes.size() != normalized.size()) {
    return InvalidField(
        field, all(),
        absl::StrCat("one for each of the ", normalized.size(), " dimensions of normalized_shape"));
  }
  if (axes.front() < 0 && axes.back() >= 0) {
    return InvalidField(field, all(), "all of them from 1 on, or all negative");
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::string one = absl::StrCat(field, "[", i, "]");
    if (axes[i] == 0 || axes[i] >= kMaxRank) {
      return InvalidField(one, absl::StrCat(axes[i]),
                          absl::StrCat("1 to ", kMaxRank - 1, ": dimension 0 counts samples"));
    }
    if (axes[i] < -kMaxRank) {
      return InvalidField(one, absl::StrCat(axes[i]), absl::StrCat("at least ", -kMaxRank));
    }
    if (i > 0 && axes[i] <= axes[i - 1]) {
      return InvalidField(one, absl::StrCat(axes[i]),
                          absl::StrCat("more than ", axes[i - 1], ": ascending, each once"));
    }
  }
  std::vector<int> checked(axes.begin(), axes.end());
  if (RunsOf(checked) > norm::kMostRuns) {
    return InvalidField(field, all(),
                        absl::StrCat("at most ", norm::kMostRuns, " runs of adjacent axes"));
  }
  if (checked.back() == -1 && RunsOf(checked) == 1) checked.clear();
  return checked;
}

absl::StatusOr<std::unique_ptr<Operation>> MakeLayerNorm(const v1::ModelConfig& config) {
  const v1::LayerNorm& message = config.layer_norm();
  if (absl::Status s = CheckLayerNorm("layer_norm", message); !s.ok()) return s;
  return MakeNormOverAxes("layer_norm", config, message, LayerNormCaseOf(message));
}

absl::StatusOr<std::unique_ptr<Operation>> MakeRmsNorm(const v1::ModelConfig& config) {
  const v1::RmsNorm& message = config.rms_norm();
  if (absl::Status s = CheckRmsNorm("rms_norm", message); !s.ok()) return s;
  return MakeNormOverAxes("rms_norm", config, message, RmsNormCaseOf(message));
}

}  // namespace normd
