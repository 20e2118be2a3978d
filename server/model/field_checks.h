// Checks of a config's fields that several operations share. All give InvalidArgument, naming the
// field, what came and what was wanted.

#ifndef NORMD_SERVER_MODEL_FIELD_CHECKS_H_
#define NORMD_SERVER_MODEL_FIELD_CHECKS_H_

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

template <typename Message>
absl::Status CheckEps(absl::string_view operation, const Message& message) {
  if (message.has_eps() && !(std::isfinite(message.eps()) && message.eps() >= 0)) {
    return InvalidField(absl::StrCat(operation, ".eps"), absl::StrCat(message.eps()),
                        "a finite value >= 0");
  }
  return absl::OkStatus();
}

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_FIELD_CHECKS_H_
