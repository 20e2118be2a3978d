// SHA-256.

#ifndef NORMD_SERVER_IDENTITY_SHA256_H_
#define NORMD_SERVER_IDENTITY_SHA256_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace normd {

using Digest = std::array<std::uint8_t, 32>;

// Source: FIPS 180-4, by OpenSSL. Thread-safe. std::bad_alloc when OpenSSL has no memory for it.
Digest Sha256(absl::string_view text);

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_SHA256_H_
