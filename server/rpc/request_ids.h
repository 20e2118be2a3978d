// What callers call their requests, so that a line of our log can be found from theirs.

#ifndef NORMD_SERVER_RPC_REQUEST_IDS_H_
#define NORMD_SERVER_RPC_REQUEST_IDS_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/string_ref.h"

namespace normd {

inline constexpr std::size_t kMaxRequestIdBytes = 128;

// Both empty where the caller sent none, or one that is not fit to be repeated.
struct RequestIds {
  std::string request_id;   // Metadata `x-request-id`: letters, digits and any of ._:/+=@-
  std::string traceparent;  // Metadata `traceparent`, of version 00 or later.

  // The 32 hexadecimal digits that name the trace; empty without a traceparent.
  absl::string_view trace_id() const;
};

// Of several values of one key the first counts.
// Source: https://www.w3.org/TR/trace-context/#traceparent-header
RequestIds ReadRequestIds(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Reads them from the call's metadata and repeats them in its trailing metadata, under the same
// keys. Before the call is finished.
RequestIds EchoRequestIds(grpc::CallbackServerContext& context);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_REQUEST_IDS_H_
