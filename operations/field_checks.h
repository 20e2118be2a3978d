// Checks of a config's fields that several operations share. All give InvalidArgument, naming the
// field, what came and what was wanted.

#ifndef NORMD_OPERATIONS_FIELD_CHECKS_H_
#define NORMD_OPERATIONS_FIELD_CHECKS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace normd {

absl::Status InvalidField(absl::string_view field, absl::string_view got, absl::string_view wanted);

// `operation` is the name of the field of ModelConfig, such as "group_norm".
absl::Status CheckChannels(absl::string_view operation, std::int64_t channels);
absl::Status CheckNormalizedShape(absl::string_view operation, absl::Span<const std::int64_t> dims);

// At least 1, and no more than an operation may have channels. `field` is its whole name.
absl::Status CheckCount(absl::string_view field, std::int64_t count);
// Finite in float32, in which most types compute.
absl::Status CheckFinite(absl::string_view field, double value);

// For a message whose channels are checked.
template <typename Message>
absl::Status CheckGroups(absl::string_view operation, const Message& message) {
  if (message.groups() >= 1 && message.channels() % message.groups() == 0) return absl::OkStatus();
  return InvalidField(absl::StrCat(operation, ".groups"), absl::StrCat(message.groups()),
                      absl::StrCat("a divisor of ", message.channels(), " channels"));
}

template <typename Message>
absl::Status CheckEps(absl::string_view operation, const Message& message) {
  if (message.has_eps() && !(std::isfinite(message.eps()) && message.eps() >= 0)) {
    return InvalidField(absl::StrCat(operation, ".eps"), absl::StrCat(message.eps()),
                        "a finite value >= 0");
  }
  return absl::OkStatus();
}

}  // namespace normd

#endif  // NORMD_OPERATIONS_FIELD_CHECKS_H_
