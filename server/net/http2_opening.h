// The opening of an HTTP/2 connection, up to the client's acknowledgement of the server's settings.

#ifndef NORMD_SERVER_NET_HTTP2_OPENING_H_
#define NORMD_SERVER_NET_HTTP2_OPENING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

struct Http2OpeningLimits {
  // Calls that a client may begin before it has acknowledged a limit.
  std::int64_t max_calls = 100;
  // Bytes of their metadata, with room for the largest that proxies pass on, and of everything: a
  // client may send 65,535 bytes of data unasked.
  std::int64_t max_header_bytes = std::int64_t{128} << 10;
  std::int64_t max_bytes = std::int64_t{224} << 10;
  std::int64_t max_frames = 1024;
};

// Only reads frame heads; gRPC judges the frames' contents. Not thread-safe.
class Http2Opening {
 public:
  enum class State {
    kPreface,  // The client's preface is not complete.
    // The preface is complete: settings are due, and their acknowledgement is awaited.
    kSettings,
    kAcknowledged,  // The acknowledgement is the next frame to be read.
    kHttp1,         // The client speaks HTTP/1.
    kTls,           // The client speaks TLS.
    kViolation,     // The client breaks a rule or a limit.
  };

  explicit Http2Opening(const Http2OpeningLimits& limits) : limits_(limits) {}

  // Processes the next bytes of the connection and returns how many of them it has consumed. The
  // rest, a part of a frame's head, must be given again with more bytes after it; so must the bytes
  // of the acknowledgement. Nothing is consumed in a final state.
  std::size_t Take(absl::string_view bytes);

  State state() const { return state_; }
  // Describes a violation.
  const std::string& error() const { return error_; }

 private:
  std::size_t TakePreface(absl::string_view bytes);
  void TakeHead(absl::string_view head);
  void Fail(State state, std::string error);

  const Http2OpeningLimits limits_;
  State state_ = State::kPreface;
  std::string error_;
  std::size_t preface_bytes_ = 0;
  std::size_t payload_bytes_ = 0;  // Still to come of the present frame.
  bool first_frame_ = true;
  std::int64_t bytes_ = 0;
  std::int64_t frames_ = 0;
  std::int64_t calls_ = 0;
  std::int64_t header_bytes_ = 0;
};

// A SETTINGS frame of a server.
std::string Http2Settings(std::uint32_t max_concurrent_streams,
                          std::uint32_t max_header_list_bytes);

// The reply to a peer in a final state other than kAcknowledged, as far as it can understand it.
std::string Http2Refusal(Http2Opening::State state);

}  // namespace normd

#endif  // NORMD_SERVER_NET_HTTP2_OPENING_H_
