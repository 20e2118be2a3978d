#include "server/model/operations/axes_norm.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/model/field_checks.h"

namespace normd {
namespace {

NormCase OverPositions(NormCase norm) {
  norm.spec.rows = norm::Rows::kPosition;
  return norm;
}

ShapePattern PatternOf(absl::Span<const std::int64_t> normalized, std::int64_t first_axis) {
  ShapePattern pattern(static_cast<std::size_t>(first_axis), kAnySize);
  pattern.insert(pattern.end(), normalized.begin(), normalized.end());
  pattern.push_back(kAnyDimensions);
  return pattern;
}

}  // namespace

AxesNorm::AxesNorm(const v1::ModelConfig& config, const NormCase& norm,
                   absl::Span<const std::int64_t> normalized, std::int64_t first_axis)
    : NormOperation(config, OverPositions(norm), Shape::Create(normalized).value_or(Shape()),
                    {PatternOf(normalized, first_axis),
                     PatternOf(std::vector<std::int64_t>(normalized.size(), 1), first_axis)}),
      normalized_(Shape::Create(normalized).value_or(Shape())),
      first_axis_(static_cast<int>(first_axis)) {}

absl::Status AxesNorm::Divide(const Shape& x, Geometry& geometry) const {
  const auto wanted = [this] { return PatternText(signature().inputs.front().shape); };
  const int end = first_axis_ + normalized_.rank();
  if (x.rank() < end) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", x.ToString(), " has ", x.rank(),
                                                   x.rank() == 1 ? " dimension" : " dimensions",
                                                   ", wanted ", wanted()));
  }
  for (int i = 0; i < x.rank(); ++i) {
    const bool normalized = i >= first_axis_ && i < end;
    if (normalized ? x.dim(i) == normalized_.dim(i - first_axis_) : i == 0 || x.dim(i) > 0) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("shape[", i, "]: ", x.dim(i), " in ", x.ToString(), ", wanted ",
                     normalized ? wanted() : std::string("at least 1")));
  }
  geometry.samples = x.Product(0, first_axis_);
  geometry.spatial = x.Product(end, x.rank());
  return absl::OkStatus();
}

// The normalized dimensions have size 1.
NormOperation::Dims AxesNorm::RowDims(const Shape& x) const {
  Dims dims(x.dims().begin(), x.dims().end());
  std::fill_n(dims.begin() + first_axis_, normalized_.rank(), 1);
  return dims;
}

absl::StatusOr<std::int64_t> FirstAxis(absl::string_view operation,
                                       absl::Span<const std::int64_t> axes,
                                       absl::Span<const std::int64_t> normalized) {
  if (axes.empty()) return 0;
  const std::string field = absl::StrCat(operation, ".axes");
  if (axes.size() != normalized.size()) {
    return InvalidField(
        field, absl::StrCat("[", absl::StrJoin(axes, ", "), "]"),
        absl::StrCat("one for each of the ", normalized.size(), " dimensions of normalized_shape"));
  }
  for (std::size_t i = 1; i < axes.size(); ++i) {
    if (axes[i] == axes[i - 1] + 1) continue;
    return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(axes[i]),
                        absl::StrCat(axes[i - 1] + 1, ": one after the other"));
  }
  constexpr std::int64_t kMaxAxis = 64;  // No shape has as many dimensions.
  if (axes.front() < 0) {
    if (axes.back() == -1) return 0;
    return InvalidField(field, absl::StrCat("[", absl::StrJoin(axes, ", "), "]"),
                        "axes from 1 on, or the last ones, up to -1");
  }
  if (axes.front() == 0 || axes.back() > kMaxAxis) {
    return InvalidField(absl::StrCat(field, "[0]"), absl::StrCat(axes.front()),
                        absl::StrCat("1 to ", kMaxAxis, ": dimension 0 counts samples"));
  }
  return axes.front();
}

}  // namespace normd
