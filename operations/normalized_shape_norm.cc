#include "operations/normalized_shape_norm.h"

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

ShapePattern PatternOf(absl::Span<const std::int64_t> normalized) {
  ShapePattern pattern = {kAnyDimensions};
  pattern.insert(pattern.end(), normalized.begin(), normalized.end());
  return pattern;
}

// PyTorch's dimensions of statistics: the normalized ones have size 1, except the last, which
// counts the rows of a sample.
ShapePattern RowPatternOf(std::size_t normalized_rank, std::int64_t groups) {
  ShapePattern pattern = {kAnyDimensions};
  pattern.insert(pattern.end(), normalized_rank, 1);
  pattern.back() = groups;
  return pattern;
}

}  // namespace

std::int64_t ElementsOf(absl::Span<const std::int64_t> normalized) {
  std::int64_t product = 1;
  for (const std::int64_t dim : normalized) product *= dim;
  return product;
}

NormalizedShapeNorm::NormalizedShapeNorm(const v1::ModelConfig& config, const NormCase& norm,
                                         absl::Span<const std::int64_t> normalized)
    : NormOperation(config, norm, Shape::Create(normalized).value_or(Shape()),
                    {PatternOf(normalized), RowPatternOf(normalized.size(), norm.spec.groups)}),
      normalized_(Shape::Create(normalized).value_or(Shape())) {}

// Every leading index is a sample, and any of them may be zero.
absl::Status NormalizedShapeNorm::Divide(const Shape& x, Geometry& geometry) const {
  const int leading = x.rank() - normalized_.rank();
  const auto wanted = [this] { return PatternText(signature().inputs.front().shape); };
  if (leading < 0) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", x.ToString(), " has ", x.rank(),
                                                   x.rank() == 1 ? " dimension" : " dimensions",
                                                   ", wanted ", wanted()));
  }
  for (int i = leading; i < x.rank(); ++i) {
    if (x.dim(i) != normalized_.dim(i - leading)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape[", i, "]: ", x.dim(i), " in ", x.ToString(), ", wanted ", wanted()));
    }
  }
  geometry.samples = x.Product(0, leading);
  geometry.spatial = 1;
  return absl::OkStatus();
}

NormOperation::Dims NormalizedShapeNorm::RowDims(const Shape& x) const {
  Dims dims(x.dims().begin(), x.dims().end() - normalized_.rank());
  dims.resize(static_cast<std::size_t>(x.rank()), 1);
  dims.back() = spec().groups;
  return dims;
}

}  // namespace normd
