#include "server/net/tls_opening.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace normd {
namespace {

// RFC 8446, sections 4 and 5.
constexpr std::uint8_t kHandshake = 22;
constexpr std::uint8_t kClientHello = 1;
constexpr std::uint16_t kSupportedVersions = 43;
constexpr std::size_t kRecordHeadBytes = 5;
constexpr std::size_t kMessageHeadBytes = 4;
constexpr std::size_t kRandomBytes = 32;
constexpr std::uint16_t kSsl3 = 0x0300;

// Reads numbers and parts from the front; once something is missing, everything after it is.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  std::size_t Number(std::size_t bytes) {
    const absl::string_view part = Part(bytes);
    std::size_t value = 0;
    for (const char c : part) value = value << 8 | static_cast<std::uint8_t>(c);
    return value;
  }
  absl::string_view Part(std::size_t bytes) {
    if (bytes > rest_.size()) ok_ = false;
    if (!ok_) return {};
    const absl::string_view part = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return part;
  }
  // A part with its length before it.
  absl::string_view Prefixed(std::size_t length_bytes) { return Part(Number(length_bytes)); }

  bool ok() const { return ok_; }
  bool empty() const { return rest_.empty(); }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

TlsOpening Failed(TlsOpening::State state, std::string error) { return {state, std::move(error)}; }
TlsOpening Violation(std::string error) {
  return Failed(TlsOpening::State::kViolation, std::move(error));
}

std::string VersionName(std::size_t version) {
  switch (version) {
    case kSsl3: return "SSL 3.0";
    case 0x0301: return "TLS 1.0";
    case 0x0302: return "TLS 1.1";
    case kTls12: return "TLS 1.2";
    case kTls13: return "TLS 1.3";
    default: return absl::StrFormat("version 0x%04x", version);
  }
}

// The newest version in a list that we know; 0: none.
std::size_t NewestOf(absl::string_view versions) {
  Reader reader(versions);
  std::size_t newest = 0;
  while (!reader.empty() && reader.ok()) {
    const std::size_t version = reader.Number(2);
    if (version >= kSsl3 && version <= kTls13) newest = std::max(newest, version);
  }
  return newest;
}

// The newest version that the body of a hello offers; nullopt if it is not a hello.
std::optional<std::size_t> OfferedVersion(absl::string_view body) {
  Reader hello(body);
  const std::size_t legacy = hello.Number(2);
  hello.Part(kRandomBytes);
  hello.Prefixed(1);  // The session's id.
  hello.Prefixed(2);  // The ciphers.
  hello.Prefixed(1);  // The compression methods.
  if (!hello.ok() || legacy < kSsl3) return std::nullopt;
  std::size_t offered = std::min<std::size_t>(legacy, kTls12);
  if (hello.empty()) return offered;
  Reader extensions(hello.Prefixed(2));
  if (!hello.ok() || !hello.empty()) return std::nullopt;
  while (!extensions.empty() && extensions.ok()) {
    const std::size_t type = extensions.Number(2);
    Reader content(extensions.Prefixed(2));
    // If it is present, the legacy version means nothing.
    if (type == kSupportedVersions) offered = NewestOf(content.Prefixed(1));
  }
  if (!extensions.ok()) return std::nullopt;
  return offered;
}

TlsOpening JudgeHello(absl::string_view body, std::uint16_t min_version) {
  const std::optional<std::size_t> offered = OfferedVersion(body);
  if (!offered) return Violation("a malformed hello of TLS");
  if (*offered >= min_version) return {TlsOpening::State::kHello, ""};
  return Failed(TlsOpening::State::kOldVersion,
                absl::StrCat(VersionName(*offered), ", wanted ", VersionName(min_version),
                             min_version < kTls13 ? " or newer" : ""));
}

TlsOpening JudgePlain(absl::string_view bytes) {
  constexpr absl::string_view kHttp2 = "PRI * HTTP/2";
  constexpr std::size_t kLongestMethod = 16;
  if (absl::StartsWith(bytes, kHttp2)) {
    return Failed(TlsOpening::State::kPlainHttp2, "HTTP/2 without TLS, wanted TLS");
  }
  if (absl::StartsWith(kHttp2, bytes)) return {};
  const auto capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto end = std::find_if_not(bytes.begin(), bytes.end(), capital);
  const auto letters = static_cast<std::size_t>(end - bytes.begin());
  if (letters == 0 || letters > kLongestMethod) return Violation("not TLS");
  if (end == bytes.end()) return {};  // It may still become a method.
  if (*end != ' ') return Violation("not TLS");
  return Failed(TlsOpening::State::kHttp1, "HTTP/1 without TLS, wanted TLS");
}

}  // namespace

TlsOpening JudgeTlsOpening(absl::string_view bytes, std::uint16_t min_version) {
  if (bytes.empty()) return {};
  if (static_cast<std::uint8_t>(bytes[0]) != kHandshake) return JudgePlain(bytes);
  // A hello may be split into records anywhere.
  std::string message;
  const std::size_t size_of_all = bytes.size();
  while (bytes.size() >= kRecordHeadBytes) {
    Reader head(bytes);
    const std::size_t type = head.Number(1);
    const std::size_t version = head.Number(2);
    const std::size_t size = head.Number(2);
    if (type != kHandshake || version >> 8 != 3) return Violation("no hello of TLS");
    if (size == 0) return Violation("an empty record before the hello's end");
    const absl::string_view part = bytes.substr(kRecordHeadBytes, size);
    absl::StrAppend(&message, part);
    if (!message.empty() && static_cast<std::uint8_t>(message[0]) != kClientHello) {
      return Violation("a handshake of TLS that does not begin with a client's hello");
    }
    if (message.size() >= kMessageHeadBytes) {
      Reader hello(message);
      hello.Part(1);
      const std::size_t body = hello.Number(3);
      if (body + kMessageHeadBytes + kRecordHeadBytes > kMaxHelloBytes) {
        return Violation(
            absl::StrCat("a hello of ", body, " bytes, wanted fewer than ", kMaxHelloBytes));
      }
      if (message.size() >= kMessageHeadBytes + body) {
        return JudgeHello(hello.Part(body), min_version);
      }
    }
    if (part.size() < size) break;
    bytes.remove_prefix(kRecordHeadBytes + size);
  }
  if (size_of_all >= kMaxHelloBytes) {
    return Violation(absl::StrCat("no whole hello within ", kMaxHelloBytes, " bytes"));
  }
  return {};
}

std::string TlsRefusal(TlsOpening::State state) {
  constexpr absl::string_view kText = "This port speaks gRPC over TLS.\n";
  switch (state) {
    case TlsOpening::State::kHttp1:
      return absl::StrCat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n",
                          "Content-Length: ", kText.size(), "\r\nConnection: close\r\n\r\n", kText);
    // A gRPC client takes a connection that is closed before a word for UNAVAILABLE, and reports
    // it. A proper GOAWAY would make it retry at once, for its call's whole time.
    case TlsOpening::State::kPlainHttp2: return "";
    case TlsOpening::State::kOldVersion:
      return std::string("\x15\x03\x01\x00\x02\x02\x46", 7);  // Alert: fatal, protocol_version.
    default: return std::string("\x15\x03\x01\x00\x02\x02\x28", 7);  // handshake_failure.
  }
}

}  // namespace normd
