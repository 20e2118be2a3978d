// What passes over the socket at which clients hand over memory (--shared_memory_listen), for both
// sides. The socket is of packets (SOCK_SEQPACKET), so a message comes whole or not at all, and a
// descriptor comes with the packet that it was sent with. docs/shared_memory.md describes the
// bytes.

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
    kRegister = 1,    // A descriptor comes with it. `text`: as a call's `authorization`, or empty.
    kUnregister = 2,  // `text`: the region's name.
  };
  Kind kind = Kind::kRegister;
  std::string text;
};

struct RegionReply {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::int64_t bytes = 0;  // Of a region that was registered.
  std::string text;        // Its name; or what is wrong.
};

// InvalidArgument for what is no such message: another beginning, another kind, bytes that are to
// be zero and are not, a text that is too long.
absl::StatusOr<RegionRequest> DecodeRegionRequest(absl::string_view packet);
absl::StatusOr<RegionReply> DecodeRegionReply(absl::string_view packet);
// A text that is too long is cut.
std::string EncodeRegionRequest(const RegionRequest& request);
std::string EncodeRegionReply(const RegionReply& reply);

}  // namespace normd

#endif  // NORMD_WIRE_REGION_MESSAGE_H_
