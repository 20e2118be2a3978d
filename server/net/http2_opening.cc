#include "server/net/http2_opening.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// RFC 9113.
constexpr std::size_t kHeadBytes = 9;
constexpr std::size_t kMaxFrameBytes = 16384;
enum FrameType : std::uint8_t { kHeaders = 1, kSettings = 4, kGoAway = 7, kContinuation = 9 };
constexpr std::uint8_t kAck = 1;
constexpr std::uint16_t kMaxConcurrentStreams = 3;
constexpr std::uint16_t kMaxHeaderListSize = 6;

constexpr std::uint8_t kTlsHandshake = 0x16;

std::string BigEndian(std::uint32_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(value >> shift));
  }
  return text;
}

std::string Frame(FrameType type, const std::string& payload) {
  return absl::StrCat(BigEndian(static_cast<std::uint32_t>(payload.size()), 3), BigEndian(type, 1),
                      BigEndian(0, 1), BigEndian(0, 4), payload);
}

// Whether these bytes could begin HTTP/1: a method in capital letters.
bool LooksLikeHttp1(absl::string_view bytes) {
  const auto capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto end = std::find_if_not(bytes.begin(), bytes.end(), capital);
  return end != bytes.begin() && (end == bytes.end() || *end == ' ');
}

}  // namespace

std::size_t Http2Opening::Take(absl::string_view bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const absl::string_view rest = bytes.substr(taken);
    if (state_ == State::kPreface) {
      taken += TakePreface(rest);
    } else if (state_ != State::kSettings) {
      break;
    } else if (payload_bytes_ > 0) {
      const std::size_t part = std::min(payload_bytes_, rest.size());
      payload_bytes_ -= part;
      bytes_ += static_cast<std::int64_t>(part);
      taken += part;
    } else if (rest.size() >= kHeadBytes) {
      TakeHead(rest.substr(0, kHeadBytes));
      if (state_ == State::kSettings) taken += kHeadBytes;
    } else {
      break;
    }
  }
  return taken;
}

std::size_t Http2Opening::TakePreface(absl::string_view bytes) {
  const absl::string_view wanted = kPreface.substr(preface_bytes_);
  const std::size_t size = std::min(wanted.size(), bytes.size());
  if (bytes.substr(0, size) == wanted.substr(0, size)) {
    preface_bytes_ += size;
    if (preface_bytes_ == kPreface.size()) state_ = State::kSettings;
    return size;
  }
  if (preface_bytes_ == 0 && static_cast<std::uint8_t>(bytes[0]) == kTlsHandshake) {
    Fail(State::kTls, "TLS, wanted HTTP/2 without TLS");
  } else if (LooksLikeHttp1(
                 absl::StrCat(kPreface.substr(0, preface_bytes_), bytes.substr(0, 16)))) {
    Fail(State::kHttp1, "HTTP/1, wanted HTTP/2");
  } else {
    Fail(State::kViolation, "no HTTP/2 preface");
  }
  return 0;
}

void Http2Opening::TakeHead(absl::string_view head) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(head[i]); };
  const std::size_t size =
      static_cast<std::size_t>(byte(0)) << 16 | static_cast<std::size_t>(byte(1)) << 8 | byte(2);
  const std::uint8_t type = byte(3);
  const bool ack = type == kSettings && (byte(4) & kAck) != 0;
  if (size > kMaxFrameBytes) {
    return Fail(State::kViolation,
                absl::StrCat("a frame of ", size, " bytes, wanted at most ", kMaxFrameBytes));
  }
  if (first_frame_ && (type != kSettings || ack)) {
    return Fail(State::kViolation,
                absl::StrCat("first a frame of type ", int{type}, ", wanted SETTINGS"));
  }
  first_frame_ = false;
  if (ack) {
    state_ = State::kAcknowledged;
    return;
  }
  payload_bytes_ = size;
  ++frames_;
  bytes_ += static_cast<std::int64_t>(kHeadBytes);
  if (type == kHeaders) ++calls_;
  if (type == kHeaders || type == kContinuation) {
    header_bytes_ += static_cast<std::int64_t>(size);
  }
  if (calls_ > limits_.max_calls || header_bytes_ > limits_.max_header_bytes ||
      frames_ > limits_.max_frames ||
      bytes_ + static_cast<std::int64_t>(size) > limits_.max_bytes) {
    Fail(State::kViolation,
         absl::StrCat(calls_, " calls, ", header_bytes_, " bytes of metadata, ", frames_,
                      " frames and ", bytes_, " bytes before the settings were acknowledged"));
  }
}

void Http2Opening::Fail(State state, std::string error) {
  state_ = state;
  error_ = std::move(error);
}

std::string Http2Settings(std::uint32_t max_concurrent_streams,
                          std::uint32_t max_header_list_bytes) {
  return Frame(
      kSettings,
      absl::StrCat(BigEndian(kMaxConcurrentStreams, 2), BigEndian(max_concurrent_streams, 4),
                   BigEndian(kMaxHeaderListSize, 2), BigEndian(max_header_list_bytes, 4)));
}

std::string Http2Refusal(Http2Opening::State state) {
  constexpr absl::string_view kText =
      "This port speaks gRPC: HTTP/2 without TLS and without an upgrade from HTTP/1.\n";
  constexpr std::uint32_t kEnhanceYourCalm = 11;
  switch (state) {
    case Http2Opening::State::kHttp1:
      return absl::StrCat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n",
                          "Content-Length: ", kText.size(), "\r\nConnection: close\r\n\r\n", kText);
    case Http2Opening::State::kTls:
      return std::string("\x15\x03\x01\x00\x02\x02\x28", 7);  // Alert: fatal, handshake_failure.
    default: return Frame(kGoAway, absl::StrCat(BigEndian(0, 4), BigEndian(kEnhanceYourCalm, 4)));
  }
}

}  // namespace normd
