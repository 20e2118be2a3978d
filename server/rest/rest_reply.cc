#include "server/rest/rest_reply.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/retry_after.h"
#include "boost/beast/http/status.hpp"
#include "server/accept/authorizer.h"
#include "wire/infer_json_response.h"

namespace normd {
namespace {

// A shorter text is one packet as it is.
constexpr std::size_t kWorthCompressing = 1400;

// Whether the list names `encoding`, and not with a weight of 0.
bool Accepts(absl::string_view list, absl::string_view encoding) {
  const std::size_t at = list.find(encoding);
  if (at == absl::string_view::npos) return false;
  const absl::string_view rest = list.substr(at + encoding.size());
  return !absl::StrContains(rest.substr(0, rest.find(',')), "q=0") ||
         absl::StrContains(rest.substr(0, rest.find(',')), "q=0.");
}

// The first lines, up to the empty one, in place of what `head` has.
void WriteHead(const RestReply& reply, const RestHead& request, const RequestIds* ids,
               absl::string_view allowed, std::string& head) {
  namespace http = boost::beast::http;
  const auto reason = http::obsolete_reason(static_cast<http::status>(reply.status));
  head.clear();
  absl::StrAppend(&head, "HTTP/1.1 ", reply.status, " ",
                  absl::string_view(reason.data(), reason.size()), "\r\n");
  // A status of 204 has no body and no length.
  if (reply.status != 204) {
    const bool binary = !reply.data.empty();
    absl::StrAppend(&head, "Content-Type: application/", binary ? "octet-stream" : "json", "\r\n",
                    "Content-Length: ", reply.body_bytes(), "\r\n");
    if (binary)
      absl::StrAppend(&head, "Inference-Header-Content-Length: ", reply.text.size(), "\r\n");
  }
  head += reply.headers;
  if (ids != nullptr && !ids->request_id.empty()) {
    absl::StrAppend(&head, "x-request-id: ", ids->request_id, "\r\n");
  }
  if (ids != nullptr && !ids->traceparent.empty()) {
    absl::StrAppend(&head, "traceparent: ", ids->traceparent, "\r\n");
  }
  const absl::string_view origin = AllowedOrigin(request.origin, allowed);
  if (!origin.empty()) {
    absl::StrAppend(&head, "Access-Control-Allow-Origin: ", origin,
                    "\r\nVary: Origin\r\nAccess-Control-Expose-Headers: "
                    "Inference-Header-Content-Length, Retry-After, x-request-id\r\n");
    if (request.verb == "OPTIONS") {  // Before a request.
      head +=
          "Access-Control-Allow-Methods: GET, POST, HEAD\r\n"
          "Access-Control-Allow-Headers: *, Authorization\r\n"
          "Access-Control-Max-Age: 600\r\n";
    }
  }
  if (!request.keep_alive) {
    head += "Connection: close\r\n";
  } else if (request.http_1_0) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
}

}  // namespace

std::size_t RestReply::body_bytes() const {
  std::size_t bytes = text.size();
  for (const Buffer& part : data) bytes += part.size();
  return bytes;
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange: return 400;
    case absl::StatusCode::kUnauthenticated: return 401;
    case absl::StatusCode::kPermissionDenied: return 403;
    case absl::StatusCode::kNotFound: return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted: return 409;
    case absl::StatusCode::kResourceExhausted: return 429;
    case absl::StatusCode::kCancelled: return 499;
    case absl::StatusCode::kUnimplemented: return 501;
    case absl::StatusCode::kUnavailable: return 503;
    case absl::StatusCode::kDeadlineExceeded: return 504;
    default: return 500;
  }
}

RestReply ErrorReply(const absl::Status& status, Duration retry_after) {
  RestReply reply;
  reply.status = HttpStatusOf(status.code());
  reply.text = EncodeJsonError(status.message());
  if (reply.status == 401) reply.headers = "WWW-Authenticate: Bearer\r\n";
  std::optional<Duration> after = RetryAfterOf(status);
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) {
    after = RetryAfter(status, retry_after);
  }
  if (after.has_value()) {
    // In whole seconds, as HTTP has it.
    absl::StrAppend(&reply.headers,
                    "Retry-After: ", std::chrono::ceil<std::chrono::seconds>(*after).count(),
                    "\r\n");
  }
  return reply;
}

RestReply RefusalReply(const RestRefusal& refusal) {
  RestReply reply;
  reply.status = refusal.status;
  if (!refusal.why.empty()) reply.text = EncodeJsonError(refusal.why);
  if (!refusal.allow.empty()) reply.headers = absl::StrCat("Allow: ", refusal.allow, "\r\n");
  if (refusal.status == 429) reply.headers = "Retry-After: 1\r\n";
  return reply;
}

void CompressReply(absl::string_view accept_encoding, RestReply& reply) {
  constexpr std::size_t kMostCompressed = std::size_t{1} << 31;  // zlib counts in 32 bits.
  if (reply.text.size() < kWorthCompressing || reply.text.size() > kMostCompressed ||
      !reply.data.empty()) {
    return;
  }
  const bool gzip = Accepts(accept_encoding, "gzip");
  if (!gzip && !Accepts(accept_encoding, "deflate")) return;
  z_stream stream{};
  constexpr int kWindowBits = 15;
  constexpr int kMemory = 8;
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kWindowBits + (gzip ? 16 : 0), kMemory,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return;
  }
  std::string compressed;
  try {
    compressed.resize(deflateBound(&stream, reply.text.size()));
  } catch (const std::exception&) {
    deflateEnd(&stream);
    return;  // It goes as it is.
  }
  stream.next_in = reinterpret_cast<Bytef*>(reply.text.data());
  stream.avail_in = static_cast<uInt>(reply.text.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  const bool done = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  compressed.resize(compressed.size() - stream.avail_out);
  deflateEnd(&stream);
  if (!done) return;
  try {
    absl::StrAppend(&reply.headers, "Content-Encoding: ", gzip ? "gzip" : "deflate", "\r\n");
  } catch (const std::exception&) {
    return;
  }
  reply.text = std::move(compressed);
}

void OutgoingReply::Set(RestReply reply, const RestHead& head, const RequestIds* ids,
                        absl::string_view allow_origin) {
  reply_ = std::move(reply);
  WriteHead(reply_, head, ids, allow_origin, head_);
  parts_ = {boost::asio::buffer(head_)};
  if (head.verb == "HEAD") return;
  parts_.push_back(boost::asio::buffer(reply_.text));
  for (const Buffer& data : reply_.data) parts_.emplace_back(data.data(), data.size());
}

}  // namespace normd
