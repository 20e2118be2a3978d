// The response to a request over HTTP.

#ifndef NORMD_SERVER_REST_REST_REPLY_H_
#define NORMD_SERVER_REST_REST_REPLY_H_

#include <cstddef>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "boost/asio/buffer.hpp"
#include "kernels/types.h"
#include "operations/geometry.h"
#include "server/accept/request_ids.h"
#include "server/rest/rest_head.h"

namespace normd {

struct RestReply {
  int status = 200;
  std::string text;                                   // JSON, or empty.
  absl::InlinedVector<Buffer, kInlinedOutputs> data;  // Binary outputs behind it.
  std::string headers;                                // More lines, each with its end.

  std::size_t body_bytes() const;
};

// The status of HTTP for a code; 499 for a client that is gone.
int HttpStatusOf(absl::StatusCode code);

// A response that says the error, as the client gets it. `retry_after` is the usual hint.
RestReply ErrorReply(const absl::Status& status, Duration retry_after);
RestReply RefusalReply(const RestRefusal& refusal);

// Compresses a text that is worth it, if `accept_encoding` says that the client can read it.
void CompressReply(absl::string_view accept_encoding, RestReply& reply);

// A response on its way to the socket.
class OutgoingReply {
 public:
  // `head` is the request's; `ids` may be null; `allow_origin` as RestOptions has it.
  void Set(RestReply reply, const RestHead& head, const RequestIds* ids,
           absl::string_view allow_origin);
  void Clear() { reply_ = RestReply(); }

  // Until Clear.
  absl::Span<const boost::asio::const_buffer> parts() const { return parts_; }
  std::size_t bytes() const { return boost::asio::buffer_size(parts_); }

 private:
  RestReply reply_;
  std::string head_;
  absl::InlinedVector<boost::asio::const_buffer, 4> parts_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_REST_REPLY_H_
