// The callers' ids for their requests, which relate a line of our log to theirs.

#ifndef NORMD_SERVER_ACCEPT_REQUEST_IDS_H_
#define NORMD_SERVER_ACCEPT_REQUEST_IDS_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

inline constexpr std::size_t kMaxRequestIdBytes = 128;

// Both are empty if the caller sent none, or one that cannot be repeated.
struct RequestIds {
  std::string request_id;   // Letters, digits and any of ._:/+=@-
  std::string traceparent;  // In version 00 or later.

  // The 32 hexadecimal digits that name the trace; empty without a traceparent.
  absl::string_view trace_id() const;
};

// Takes the ids that can be repeated.
// Source: https://www.w3.org/TR/trace-context/#traceparent-header
RequestIds FitRequestIds(absl::string_view request_id, absl::string_view traceparent);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_REQUEST_IDS_H_
