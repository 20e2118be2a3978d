#include "client/output_specs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shape.h"
#include "wire/data_type.h"

namespace normd::client {
namespace {

using Dims = std::vector<std::int64_t>;
using Pattern = absl::Span<const std::int64_t>;

// The values of the patterns' wildcards, which all tensors of a request share.
struct Bound {
  std::map<std::size_t, std::int64_t> sizes;  // kAnySize, by its place in the pattern.
  std::optional<Dims> dimensions;             // kAnyDimensions.
};

bool IsDimensions(std::int64_t size) { return size == kAnyDimensions || size == kOwnDimensions; }

// Whether the shape matches the pattern and agrees with the bound values; binds the rest.
bool Bind(Pattern pattern, absl::Span<const std::int64_t> dims, Bound& bound) {
  const bool open = std::any_of(pattern.begin(), pattern.end(), IsDimensions);
  const std::size_t fixed = pattern.size() - (open ? 1 : 0);
  if (dims.size() < fixed || (!open && dims.size() > fixed)) return false;
  std::size_t at = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (IsDimensions(pattern[i])) {
      const absl::Span<const std::int64_t> taken = dims.subspan(at, dims.size() - fixed);
      at += taken.size();
      if (pattern[i] == kOwnDimensions) continue;
      const Dims own(taken.begin(), taken.end());
      if (bound.dimensions.value_or(own) != own) return false;
      bound.dimensions = own;
      continue;
    }
    const std::int64_t size = dims[at++];
    if (pattern[i] == kAnySize ? bound.sizes.emplace(i, size).first->second != size
                               : pattern[i] != size) {
      return false;
    }
  }
  return true;
}

// nullopt if something is not bound.
std::optional<Dims> Fill(Pattern pattern, const Bound& bound) {
  Dims dims;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == kAnyDimensions && bound.dimensions.has_value()) {
      dims.insert(dims.end(), bound.dimensions->begin(), bound.dimensions->end());
    } else if (pattern[i] == kAnySize && bound.sizes.count(i) > 0) {
      dims.push_back(bound.sizes.at(i));
    } else if (pattern[i] >= 0) {
      dims.push_back(pattern[i]);
    } else {
      return std::nullopt;
    }
  }
  return dims;
}

absl::StatusOr<Bound> BindInputs(const v1::ModelInfo& model, absl::Span<const TensorSpec> inputs) {
  if (model.inputs().empty() || model.outputs().empty()) {
    return absl::FailedPreconditionError(
        "the server does not tell the model's inputs and outputs, as it is older than this "
        "program");
  }
  Bound bound;
  for (const TensorSpec& input : inputs) {
    const bool only = input.name.empty() && model.inputs_size() == 1;
    const auto info =
        std::find_if(model.inputs().begin(), model.inputs().end(),
                     [&](const auto& known) { return only || known.name() == input.name; });
    if (info == model.inputs().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("input \"", input.name, "\": not one of ", model.name(), "'s"));
    }
    if (Bind(info->shape(), input.shape.dims(), bound)) continue;
    return absl::InvalidArgumentError(absl::StrCat("input \"", info->name(), "\": shape ",
                                                   input.shape.ToString(), ", wanted ",
                                                   PatternText(info->shape())));
  }
  return bound;
}

absl::StatusOr<TensorSpec> SpecOf(const v1::TensorInfo& info, const Bound& bound,
                                  norm::DType dtype) {
  const std::optional<Dims> dims = Fill(info.shape(), bound);
  v1::DataType type = info.dtype();
  if (dtype == norm::DType::kFloat64 && info.dtype_of_float64() != v1::DATA_TYPE_UNSPECIFIED) {
    type = info.dtype_of_float64();
  }
  const DataTypeNames* names = type == v1::DATA_TYPE_UNSPECIFIED
                                   ? &NamesOf(dtype)
                                   : FindDataType(&DataTypeNames::protocol, static_cast<int>(type));
  if (!dims.has_value() || names == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("output \"", info.name(), "\": shape ", PatternText(info.shape()),
                     " and type ", static_cast<int>(type), " do not tell its size"));
  }
  absl::StatusOr<Shape> shape = Shape::Create(*dims);
  if (!shape.ok()) return shape.status();
  return TensorSpec{info.name(), names->dtype, *std::move(shape)};
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> OutputSpecs(const v1::ModelInfo& model,
                                                    absl::Span<const TensorSpec> inputs,
                                                    absl::Span<const std::string> wanted) {
  const absl::StatusOr<Bound> bound = BindInputs(model, inputs);
  if (!bound.ok()) return bound.status();
  const bool only = wanted.size() == 1 && wanted.front().empty();
  std::vector<TensorSpec> specs;
  for (const v1::TensorInfo& info : model.outputs()) {
    const bool named = std::find(wanted.begin(), wanted.end(), info.name()) != wanted.end();
    const bool unasked = (wanted.empty() || only) && !info.on_request();
    if (!named && !unasked) continue;
    absl::StatusOr<TensorSpec> spec = SpecOf(info, *bound, inputs.front().dtype);
    if (!spec.ok()) return spec.status();
    specs.push_back(*std::move(spec));
  }
  if (!wanted.empty() && specs.size() != wanted.size()) {
    return absl::InvalidArgumentError(absl::StrCat("outputs: ", wanted.size(), " names, of which ",
                                                   model.name(), " has ", specs.size()));
  }
  return specs;
}

}  // namespace normd::client
