#include "operations/match_inputs.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"

namespace normd {
namespace {

using NameAt = absl::FunctionRef<absl::string_view(std::size_t)>;

// `count` when it is not there.
absl::StatusOr<std::size_t> PlaceOf(absl::string_view wanted, std::size_t count, NameAt name) {
  std::size_t place = count;
  for (std::size_t i = 0; i < count; ++i) {
    if (name(i) != wanted) continue;
    if (place < count) {
      return absl::InvalidArgumentError(
          absl::StrCat("inputs[", i, "].name: \"", wanted, "\" twice, wanted each name once"));
    }
    place = i;
  }
  return place;
}

}  // namespace

absl::Status MatchInputs(absl::Span<const TensorSignature> wanted, std::size_t count, NameAt name,
                         absl::InlinedVector<std::size_t, kInlinedInputs>& places) {
  places.assign(wanted.size(), 0);
  if (wanted.size() == 1 && count == 1 && name(0).empty()) return absl::OkStatus();
  for (std::size_t i = 0; i < count; ++i) {
    bool known = false;
    for (const TensorSignature& one : wanted) known = known || name(i) == one.name;
    if (known) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "inputs[", i, "].name: \"", Printable(name(i), 32), "\", wanted ", QuotedNames(wanted)));
  }
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const absl::StatusOr<std::size_t> place = PlaceOf(wanted[k].name, count, name);
    if (!place.ok()) return place.status();
    if (*place == count) {
      return absl::InvalidArgumentError(absl::StrCat(
          "inputs: \"", wanted[k].name, "\" is missing, wanted ", QuotedNames(wanted)));
    }
    places[k] = *place;
  }
  return absl::OkStatus();
}

std::string QuotedNames(absl::Span<const TensorSignature> tensors) {
  return absl::StrJoin(tensors, " and ", [](std::string* out, const TensorSignature& tensor) {
    absl::StrAppend(out, "\"", tensor.name, "\"");
  });
}

}  // namespace normd
