#include "wire/stream_part.h"

#include "absl/strings/string_view.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/message_reader.h"
#include "wire/message_writer.h"

namespace normd {
namespace {

using Kind = StreamPartView::Kind;

// These are two enumerations.
static_assert(int{v1::NormalizeStreamRequest::kHeaderFieldNumber} ==
              int{v1::NormalizeStreamResponse::kHeaderFieldNumber});
static_assert(int{v1::NormalizeStreamRequest::kChunkFieldNumber} ==
              int{v1::NormalizeStreamResponse::kChunkFieldNumber});

Kind RequestPart(std::uint32_t tag) {
  switch (tag) {
    case DelimitedTag(v1::NormalizeStreamRequest::kHeaderFieldNumber): return Kind::kHeader;
    case DelimitedTag(v1::NormalizeStreamRequest::kChunkFieldNumber): return Kind::kChunk;
    default: return Kind::kNone;
  }
}

Kind ResponsePart(std::uint32_t tag) {
  return tag == DelimitedTag(v1::NormalizeStreamResponse::kTrailerFieldNumber) ? Kind::kTrailer
                                                                               : RequestPart(tag);
}

absl::StatusOr<StreamPartView> Decode(absl::string_view message, Kind (*part_of)(std::uint32_t),
                                      absl::Span<const ConstBytes> slices) {
  MessageReader reader(message, slices);
  StreamPartView part;
  absl::Status status = reader.ReadMessage([&](std::uint32_t tag) -> absl::Status {
    const Kind kind = part_of(tag);
    if (kind == Kind::kNone) return reader.SkipUnknown(tag);
    if (part.kind != Kind::kNone) {
      return absl::InvalidArgumentError("part: more than one in a message, wanted one");
    }
    part.kind = kind;
    return reader.ReadViews("part", part.bytes, part.size);
  });
  if (!status.ok()) return status;
  return part;
}

}  // namespace

absl::StatusOr<StreamPartView> DecodeStreamRequest(absl::Span<const ConstBytes> slices) {
  return Decode("request", RequestPart, slices);
}

absl::StatusOr<StreamPartView> DecodeStreamResponse(absl::Span<const ConstBytes> slices) {
  return Decode("response", ResponsePart, slices);
}

std::string EncodeStreamChunkHead(std::size_t size) {
  char head[16];
  MessageWriter writer(head);
  writer.WriteLength(v1::NormalizeStreamRequest::kChunkFieldNumber, size);
  return std::string(head, static_cast<std::size_t>(writer.position() - head));
}

}  // namespace normd
