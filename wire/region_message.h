// The messages on the socket at which clients pass memory (--shared_memory_listen), for both sides.
// It is a socket of packets (SOCK_SEQPACKET): a message comes whole or not at all, together with
// its descriptor. docs/shared_memory.md describes the bytes.

#ifndef NORMD_WIRE_REGION_MESSAGE_H_
#define NORMD_WIRE_REGION_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd {

inline constexpr std::size_t kMaxRegionTextBytes = 4096;
inline constexpr std::size_t kMaxRegionPacketBytes = 16 + kMaxRegionTextBytes;

struct RegionRequest {
  enum class Kind : std::uint8_t {
    // A descriptor comes with it. `text`: as in a call's `authorization`, or empty.
    kRegister = 1,
    kUnregister = 2,  // `text`: the region's name.
  };
  Kind kind = Kind::kRegister;
  std::string text;
};

struct RegionReply {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::int64_t bytes = 0;  // The size of a registered region.
  std::string text;        // The region's name, or the error.
};

// InvalidArgument for another beginning or kind, for nonzero bytes that have to be zero, and for a
// text that is too long.
absl::StatusOr<RegionRequest> DecodeRegionRequest(absl::string_view packet);
absl::StatusOr<RegionReply> DecodeRegionReply(absl::string_view packet);
// A text that is too long is cut.
std::string EncodeRegionRequest(const RegionRequest& request);
std::string EncodeRegionReply(const RegionReply& reply);

}  // namespace normd

#endif  // NORMD_WIRE_REGION_MESSAGE_H_
