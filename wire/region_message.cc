#include "wire/region_message.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// Requests and replies begin with these four bytes. Four bytes follow for the kind or the code,
// eight for the region's size (zero in a request), then the text. Numbers are little-endian.
constexpr absl::string_view kBeginning = "NRM1";
constexpr std::size_t kHeadBytes = 16;
static_assert(kHeadBytes + kMaxRegionTextBytes == kMaxRegionPacketBytes);

std::uint64_t NumberAt(absl::string_view packet, std::size_t at, std::size_t bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(packet[at + i])) << (8 * i);
  }
  return number;
}

void Append(std::uint64_t number, std::size_t bytes, std::string& packet) {
  for (std::size_t i = 0; i < bytes; ++i) {
    packet.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  }
}

std::string Encode(std::uint64_t code, std::int64_t bytes, absl::string_view text) {
  std::string packet(kBeginning);
  Append(code, 4, packet);
  Append(static_cast<std::uint64_t>(bytes), 8, packet);
  packet.append(text.data(), std::min(text.size(), kMaxRegionTextBytes));
  return packet;
}

absl::Status CheckHead(absl::string_view packet) {
  if (packet.size() < kHeadBytes || packet.size() > kMaxRegionPacketBytes) {
    return absl::InvalidArgumentError(absl::StrCat("packet: ", packet.size(),
                                                   " bytes, wanted from ", kHeadBytes, " to ",
                                                   kMaxRegionPacketBytes));
  }
  if (absl::StartsWith(packet, kBeginning)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("packet: another beginning, wanted ", kBeginning));
}

}  // namespace

absl::StatusOr<RegionRequest> DecodeRegionRequest(absl::string_view packet) {
  if (absl::Status status = CheckHead(packet); !status.ok()) return status;
  const std::uint64_t kind = NumberAt(packet, 4, 4);
  if (kind != static_cast<std::uint64_t>(RegionRequest::Kind::kRegister) &&
      kind != static_cast<std::uint64_t>(RegionRequest::Kind::kUnregister)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind: ", kind, ", wanted 1 (register) or 2 (unregister)"));
  }
  if (const std::uint64_t bytes = NumberAt(packet, 8, 8); bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes: ", bytes, ", wanted 0: the file's size says it"));
  }
  return RegionRequest{static_cast<RegionRequest::Kind>(kind),
                       std::string(packet.substr(kHeadBytes))};
}

absl::StatusOr<RegionReply> DecodeRegionReply(absl::string_view packet) {
  if (absl::Status status = CheckHead(packet); !status.ok()) return status;
  const std::uint64_t code = NumberAt(packet, 4, 4);
  const std::uint64_t bytes = NumberAt(packet, 8, 8);
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (code > static_cast<std::uint64_t>(absl::StatusCode::kUnauthenticated) || bytes > kMost) {
    return absl::InvalidArgumentError("reply: a code or a size that is none");
  }
  return RegionReply{static_cast<absl::StatusCode>(code), static_cast<std::int64_t>(bytes),
                     std::string(packet.substr(kHeadBytes))};
}

std::string EncodeRegionRequest(const RegionRequest& request) {
  return Encode(static_cast<std::uint64_t>(request.kind), 0, request.text);
}

std::string EncodeRegionReply(const RegionReply& reply) {
  return Encode(static_cast<std::uint64_t>(reply.code), reply.bytes, reply.text);
}

}  // namespace normd
