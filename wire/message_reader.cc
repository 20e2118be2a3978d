#include "wire/message_reader.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/common.h"

namespace normd {
namespace {

using google::protobuf::io::CodedInputStream;
using Wire = google::protobuf::internal::WireFormatLite;

constexpr int kMaxGroupDepth = 100;  // The generated classes have the same limit.
// The coded stream takes tags and lengths of up to ten bytes. The generated classes, like the
// specification, take at most five.
constexpr int kMaxVarint32Bytes = 5;
// Protobuf counts a message's bytes in an int.
constexpr std::size_t kMaxMessageBytes = std::numeric_limits<int>::max();

std::size_t SizeOf(absl::Span<const ConstBytes> slices) {
  std::size_t bytes = 0;
  for (const ConstBytes slice : slices) {
    bytes += slice.size();  // The sizes of existing memory: their sum cannot overflow.
  }
  return bytes;
}

}  // namespace

MessageReader::MessageReader(absl::string_view message, absl::Span<const ConstBytes> slices)
    : message_(message),
      bytes_(SizeOf(slices)),
      stream_(bytes_ <= kMaxMessageBytes ? slices : absl::Span<const ConstBytes>()),
      in_(&stream_) {
  in_.PushLimit(static_cast<int>(std::min(bytes_, kMaxMessageBytes)));
}

absl::Status MessageReader::CheckSize() const {
  if (bytes_ <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(message_, ": ", bytes_, " bytes, wanted less than 2 GiB"));
}

std::string MessageReader::Within() const {
  return list_.empty() ? "" : absl::StrCat(list_, "[", index_, "]");
}

absl::Status MessageReader::Malformed(absl::string_view field) const {
  return absl::InvalidArgumentError(absl::StrCat(message_, ": malformed protobuf in ", Within(),
                                                 field, " near byte ", in_.CurrentPosition()));
}

// 0 at the end of the message; ConsumedEntireMessage then tells whether it is well formed.
std::uint32_t MessageReader::ReadTag() {
  const int begin = in_.CurrentPosition();
  const std::uint32_t tag = in_.ReadTag();
  return in_.CurrentPosition() - begin <= kMaxVarint32Bytes ? tag : 0;
}

// The length of what follows, which lies within the message.
bool MessageReader::ReadLength(int* length) {
  const int begin = in_.CurrentPosition();
  return in_.ReadVarintSizeAsInt(length) && in_.CurrentPosition() - begin <= kMaxVarint32Bytes &&
         *length <= in_.BytesUntilLimit();
}

ConstBytes MessageReader::NextView(int most) {
  const void* data = nullptr;
  int size = 0;
  if (!in_.GetDirectBufferPointer(&data, &size)) return {};
  size = std::min(size, most);
  in_.Skip(size);
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(size)};
}

absl::Status MessageReader::ReadInt(absl::string_view field, std::int64_t& value) {
  std::uint64_t raw = 0;
  if (!in_.ReadVarint64(&raw)) return Malformed(field);
  value = static_cast<std::int64_t>(raw);
  return absl::OkStatus();
}

absl::Status MessageReader::ReadBool(absl::string_view field, bool& value) {
  std::int64_t number = 0;
  absl::Status status = ReadInt(field, number);
  value = number != 0;
  return status;
}

absl::Status MessageReader::ReadFixed(absl::string_view field, char* out, std::size_t size) {
  return in_.ReadRaw(out, static_cast<int>(size)) ? absl::OkStatus() : Malformed(field);
}

absl::Status MessageReader::ReadText(absl::string_view field, int max_bytes, std::string& text) {
  int length = 0;
  if (!ReadLength(&length)) return Malformed(field);
  if (length > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Within(), field, ": ", length, " bytes, wanted at most ", max_bytes));
  }
  if (!in_.ReadString(&text, length) ||
      !google::protobuf::internal::IsStructurallyValidUTF8(text)) {
    return Malformed(absl::StrCat(field, " (not UTF-8)"));
  }
  return absl::OkStatus();
}

absl::Status MessageReader::MergeInto(absl::string_view field,
                                      google::protobuf::MessageLite& message) {
  int length = 0;
  if (!ReadLength(&length)) return Malformed(field);
  const void* data = nullptr;
  int size = 0;
  // A submessage mostly comes once and in one slice: parsing it there costs half as much.
  if (message.ByteSizeLong() == 0 && in_.GetDirectBufferPointer(&data, &size) && size >= length) {
    if (!message.ParsePartialFromArray(data, length)) return Malformed(field);
    in_.Skip(length);
    return absl::OkStatus();
  }
  const Limit outer = in_.PushLimit(length);
  if (!message.MergePartialFromCodedStream(&in_) || !in_.ConsumedEntireMessage()) {
    return Malformed(field);
  }
  in_.PopLimit(outer);
  return absl::OkStatus();
}

absl::Status MessageReader::SkipUnknown(std::uint32_t tag) {
  return Skip(tag, /*depth=*/0) ? absl::OkStatus() : Malformed("an unknown field");
}

bool MessageReader::Skip(std::uint32_t tag, int depth) {
  if (Wire::GetTagFieldNumber(tag) == 0 || depth > kMaxGroupDepth) return false;
  switch (Wire::GetTagWireType(tag)) {
    case Wire::WIRETYPE_VARINT: {
      std::uint64_t value = 0;
      return in_.ReadVarint64(&value);
    }
    case Wire::WIRETYPE_FIXED64: return in_.Skip(8);
    case Wire::WIRETYPE_LENGTH_DELIMITED: {
      int length = 0;
      return ReadLength(&length) && in_.Skip(length);
    }
    case Wire::WIRETYPE_START_GROUP: {
      const std::uint32_t end =
          Wire::MakeTag(Wire::GetTagFieldNumber(tag), Wire::WIRETYPE_END_GROUP);
      for (std::uint32_t inner = ReadTag(); inner != end; inner = ReadTag()) {
        if (inner == 0 || !Skip(inner, depth + 1)) return false;
      }
      return true;
    }
    case Wire::WIRETYPE_FIXED32: return in_.Skip(4);
    default: return false;  // The end of a group that did not begin, or an unknown wire type.
  }
}

}  // namespace normd
