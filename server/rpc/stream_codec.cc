#include "server/rpc/stream_codec.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "normd/v1/norm_service.pb.h"
#include "server/rpc/slice_stream.h"

namespace normd {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

constexpr std::uint32_t Tag(int field) {
  return static_cast<std::uint32_t>(field) << Wire::kTagTypeBits | Wire::WIRETYPE_LENGTH_DELIMITED;
}

absl::Status Malformed(const CodedInputStream& in) {
  return absl::InvalidArgumentError(
      absl::StrCat("request: malformed protobuf near byte ", in.CurrentPosition()));
}

bool ReadViews(CodedInputStream& in, StreamPartView& part) {
  int left = 0;
  if (!in.ReadVarintSizeAsInt(&left) || left > in.BytesUntilLimit()) return false;
  part.size = left;
  while (left > 0) {
    const void* data = nullptr;
    int size = 0;
    if (!in.GetDirectBufferPointer(&data, &size)) return false;
    size = std::min(size, left);
    part.bytes.emplace_back(static_cast<const std::byte*>(data), static_cast<std::size_t>(size));
    in.Skip(size);
    left -= size;
  }
  return true;
}

}  // namespace

absl::StatusOr<StreamPartView> DecodeStreamRequest(absl::Span<const ConstBytes> slices) {
  std::size_t bytes = 0;
  for (const ConstBytes slice : slices) bytes += slice.size();
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: ", bytes, " bytes, wanted less than 2 GiB"));
  }
  SliceStream stream(slices);
  CodedInputStream in(&stream);
  in.PushLimit(static_cast<int>(bytes));
  StreamPartView part;
  while (const std::uint32_t tag = in.ReadTag()) {
    using Request = v1::NormalizeStreamRequest;
    if (tag != Tag(Request::kHeaderFieldNumber) && tag != Tag(Request::kChunkFieldNumber)) {
      if (!Wire::SkipField(&in, tag)) return Malformed(in);
      continue;
    }
    if (part.kind != StreamPartView::Kind::kNone) {
      return absl::InvalidArgumentError("part: more than one in a message, wanted one");
    }
    part.kind = tag == Tag(Request::kHeaderFieldNumber) ? StreamPartView::Kind::kHeader
                                                        : StreamPartView::Kind::kChunk;
    if (!ReadViews(in, part)) return Malformed(in);
  }
  if (!in.ConsumedEntireMessage()) return Malformed(in);
  return part;
}

std::string EncodeStreamChunkHead(std::size_t size) {
  std::uint8_t head[16];
  std::uint8_t* end = Wire::WriteTagToArray(v1::NormalizeStreamResponse::kChunkFieldNumber,
                                            Wire::WIRETYPE_LENGTH_DELIMITED, head);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<std::uint32_t>(size), end);
  return std::string(reinterpret_cast<const char*>(head), static_cast<std::size_t>(end - head));
}

}  // namespace normd
