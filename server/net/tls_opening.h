// The opening of a TLS connection: the client's hello.

#ifndef NORMD_SERVER_NET_TLS_OPENING_H_
#define NORMD_SERVER_NET_TLS_OPENING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

// In TLS's encoding: 1.2 is 0x0303, 1.3 is 0x0304.
inline constexpr std::uint16_t kTls12 = 0x0303;
inline constexpr std::uint16_t kTls13 = 0x0304;

// The most bytes of a hello, including the heads of its records: several times what clients send,
// even with post-quantum keys.
inline constexpr std::size_t kMaxHelloBytes = 16384;

struct TlsOpening {
  enum class State {
    kIncomplete,  // More bytes are needed; never with kMaxHelloBytes or more.
    kHello,       // A client's hello is there, whole, and offers an acceptable version.
    kOldVersion,  // It offers none that is new enough.
    kPlainHttp2,  // The client speaks HTTP/2 without TLS.
    kHttp1,       // The client speaks HTTP/1 without TLS.
    kViolation,   // These bytes are not a hello.
  };
  State state = State::kIncomplete;
  std::string error;  // In the last four states.
};

// Judges a connection by its first bytes. `min_version` is the oldest accepted TLS version: a
// server with TLS 1.3 uses it with every client that offers it, so a hello that offers
// `min_version` gets it or better. OpenSSL judges keys, ciphers and certificates. Pure.
TlsOpening JudgeTlsOpening(absl::string_view bytes, std::uint16_t min_version);

// The reply to a peer in a final state other than kHello, as far as that helps it; may be empty.
std::string TlsRefusal(TlsOpening::State state);

}  // namespace normd

#endif  // NORMD_SERVER_NET_TLS_OPENING_H_
