// Numbers of bytes as people write them: 4096, 64MiB, 1GB.

#ifndef NORMD_FLAGS_BYTE_SIZE_H_
#define NORMD_FLAGS_BYTE_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

// Parses a whole number, which may be negative, with or without a unit. KiB, MiB, GiB and TiB are
// powers of 1024; kB, KB, MB, GB and TB are powers of 1000. Nullopt for any other text and for a
// number that 64 bits do not hold.
std::optional<std::int64_t> ParseByteSize(absl::string_view text);

// `bytes` in the largest power of 1024 that divides it: "64MiB", "4097". ParseByteSize reads it.
std::string FormatByteSize(std::int64_t bytes);

}  // namespace normd

#endif  // NORMD_FLAGS_BYTE_SIZE_H_
