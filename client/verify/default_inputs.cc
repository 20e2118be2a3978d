#include "client/verify/default_inputs.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shape.h"

namespace normd::client {
namespace {

constexpr std::int64_t kSide = 56;
constexpr std::int64_t kRows = 8;

using Pattern = absl::Span<const std::int64_t>;

bool IsDimensions(std::int64_t size) { return size == kAnyDimensions || size == kOwnDimensions; }

bool IsKnown(Pattern pattern) {
  return std::all_of(pattern.begin(), pattern.end(),
                     [](std::int64_t size) { return size >= kOwnDimensions; }) &&
         std::count_if(pattern.begin(), pattern.end(), IsDimensions) <= 1;
}

// Whether any number of dimensions may follow the first, which counts samples.
bool IsImage(Pattern pattern) {
  const auto found = std::find_if(pattern.begin(), pattern.end(), IsDimensions);
  return found > pattern.begin() && found < pattern.end();
}

// The same for every tensor of a request.
std::vector<std::int64_t> Fill(Pattern pattern, std::int64_t samples) {
  std::vector<std::int64_t> dims;
  for (const std::int64_t size : pattern) {
    if (IsDimensions(size) && !dims.empty()) {
      dims.insert(dims.end(), {kSide, kSide});
    } else {
      dims.push_back(size < 0 ? samples : size);
    }
  }
  return dims;
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> DefaultInputs(const v1::ModelInfo& model) {
  if (model.inputs().empty()) {
    return absl::FailedPreconditionError(
        "the server does not tell the model's inputs, as it is older than this program: wanted a "
        "shape");
  }
  bool images = false;
  for (const v1::TensorInfo& input : model.inputs()) {
    images = images || IsImage(input.shape());
    if (IsKnown(input.shape())) continue;
    return absl::FailedPreconditionError(absl::StrCat("input \"", input.name(), "\": shape ",
                                                      PatternText(input.shape()),
                                                      " is of a kind that this program, older than "
                                                      "the server, does not know: wanted a shape"));
  }
  std::vector<TensorSpec> inputs;
  for (const v1::TensorInfo& input : model.inputs()) {
    absl::StatusOr<Shape> shape = Shape::Create(Fill(input.shape(), images ? 1 : kRows));
    if (!shape.ok()) return shape.status();
    inputs.push_back({input.name(), norm::DType::kFloat32, *std::move(shape)});
  }
  return inputs;
}

}  // namespace normd::client
