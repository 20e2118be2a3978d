// How a TLS connection begins: with the client's hello.

#ifndef NORMD_SERVER_NET_TLS_OPENING_H_
#define NORMD_SERVER_NET_TLS_OPENING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

// As TLS writes them: 1.2 is 0x0303, 1.3 is 0x0304.
inline constexpr std::uint16_t kTls12 = 0x0303;
inline constexpr std::uint16_t kTls13 = 0x0304;

// A hello, with the heads of the records that it comes in, has at most so many bytes: several times
// what clients send, also with keys that withstand quantum computers.
inline constexpr std::size_t kMaxHelloBytes = 16384;

struct TlsOpening {
  enum class State {
    kIncomplete,  // More is needed; never of kMaxHelloBytes or more.
    kHello,       // A client's hello is there, whole, and offers a version that will do.
    kOldVersion,  // It offers none that is new enough.
    kPlainHttp2,  // The client speaks HTTP/2 without TLS,
    kHttp1,       // or HTTP/1 without TLS,
    kViolation,   // or what is no hello.
  };
  State state = State::kIncomplete;
  std::string error;  // In the last four.
};

// Judges a connection by its first bytes. `min_version` is the oldest TLS version that is taken: a
// server which knows TLS 1.3 speaks it with every client that offers it, so a hello that offers
// `min_version` gets it or better. Keys, ciphers and certificates are OpenSSL's business. Pure.
TlsOpening JudgeTlsOpening(absl::string_view bytes, std::uint16_t min_version);

// What a peer in a final state other than kHello is told, as far as that helps it; may be empty.
std::string TlsRefusal(TlsOpening::State state);

}  // namespace normd

#endif  // NORMD_SERVER_NET_TLS_OPENING_H_
