// How an HTTP/2 connection begins, up to the client's acknowledgement of the server's settings.

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
  // Bytes of their metadata, which has room for the largest that proxies pass on, and of
  // everything: the data that a client may send unasked is 65,535.
  std::int64_t max_header_bytes = std::int64_t{128} << 10;
  std::int64_t max_bytes = std::int64_t{224} << 10;
  std::int64_t max_frames = 1024;
};

// Reads frame heads only; what frames hold is for gRPC to judge. Not thread-safe.
class Http2Opening {
 public:
  enum class State {
    kPreface,       // The client's preface is not complete.
    kSettings,      // It is: settings are due, and their acknowledgement is awaited.
    kAcknowledged,  // The acknowledgement is the next that is to be read.
    kHttp1,         // The client speaks HTTP/1,
    kTls,           // or TLS,
    kViolation,     // or breaks a rule or a limit.
  };

  explicit Http2Opening(const Http2OpeningLimits& limits) : limits_(limits) {}

  // Looks at the next bytes of the connection and returns how many of them it has done with. The
  // rest, a part of a frame's head, are to be given again with more behind them; the bytes of the
  // acknowledgement stay, too. Nothing is taken in a final state.
  std::size_t Take(absl::string_view bytes);

  State state() const { return state_; }
  // Says what a violation is.
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

// What a peer in a final state other than kAcknowledged is told, as far as it can understand it.
std::string Http2Refusal(Http2Opening::State state);

}  // namespace normd

#endif  // NORMD_SERVER_NET_HTTP2_OPENING_H_
