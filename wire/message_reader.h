// Reads protobuf messages field by field from the slices in which they came. It accepts and refuses
// the same messages as the generated classes, and does not copy the long fields.

#ifndef NORMD_WIRE_MESSAGE_READER_H_
#define NORMD_WIRE_MESSAGE_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/message_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "wire/slice_stream.h"

namespace normd {

constexpr std::uint32_t VarintTag(int field) {
  return static_cast<std::uint32_t>(field) << 3 |
         google::protobuf::internal::WireFormatLite::WIRETYPE_VARINT;
}
constexpr std::uint32_t DelimitedTag(int field) {
  return static_cast<std::uint32_t>(field) << 3 |
         google::protobuf::internal::WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}
constexpr std::uint32_t Fixed32Tag(int field) {
  return static_cast<std::uint32_t>(field) << 3 |
         google::protobuf::internal::WireFormatLite::WIRETYPE_FIXED32;
}
constexpr std::uint32_t Fixed64Tag(int field) {
  return static_cast<std::uint32_t>(field) << 3 |
         google::protobuf::internal::WireFormatLite::WIRETYPE_FIXED64;
}

// Reads one message; borrows the slices. Each function reads a field whose tag has been read; its
// name is for errors. All return InvalidArgument: "<message>: malformed protobuf in <field> near
// byte <n>", or what is wrong with the value. Not thread-safe.
class MessageReader {
 public:
  // `message`: what it is called in errors, such as "request".
  MessageReader(absl::string_view message, absl::Span<const ConstBytes> slices);

  // Reads the message: calls `on_field(tag)` for each field, which reads or skips it and returns
  // its status. Refuses a message of 2 GiB or more.
  template <typename OnField>
  absl::Status ReadMessage(OnField on_field) {
    absl::Status status = CheckSize();
    return status.ok() ? ReadFields("a tag", on_field) : status;
  }

  // Reads element `index` of the repeated message `list` likewise. Errors within it begin with
  // "list[index]".
  template <typename OnField>
  absl::Status ReadElement(absl::string_view list, std::size_t index, OnField on_field) {
    list_ = list;
    index_ = index;
    int length = 0;
    if (!ReadLength(&length)) return Malformed("");
    const Limit outer = in_.PushLimit(length);
    absl::Status status = ReadFields("", on_field);
    if (!status.ok()) return status;
    in_.PopLimit(outer);
    list_ = "";
    return status;
  }

  // Reads a submessage likewise. Its errors are those of the message around it.
  template <typename OnField>
  absl::Status ReadSubmessage(absl::string_view field, OnField on_field) {
    int length = 0;
    if (!ReadLength(&length)) return Malformed(field);
    const Limit outer = in_.PushLimit(length);
    absl::Status status = ReadFields(field, on_field);
    if (!status.ok()) return status;
    in_.PopLimit(outer);
    return status;
  }

  absl::Status ReadInt(absl::string_view field, std::int64_t& value);
  absl::Status ReadBool(absl::string_view field, bool& value);
  // Copies the `size` bytes of a fixed-size number, 4 or 8, as they are on the wire.
  absl::Status ReadFixed(absl::string_view field, char* out, std::size_t size);

  // Keeps values that name no enumerator.
  template <typename Enum>
  absl::Status ReadEnum(absl::string_view field, Enum& value) {
    std::int64_t number = 0;
    absl::Status status = ReadInt(field, number);
    value = static_cast<Enum>(static_cast<int>(number));
    return status;
  }

  // UTF-8 of at most `max_bytes`; a longer text is refused before it is stored.
  absl::Status ReadText(absl::string_view field, int max_bytes, std::string& text);

  // A packed field: calls `on_element` until its end.
  template <typename OnElement>
  absl::Status ReadPacked(absl::string_view field, OnElement on_element) {
    int length = 0;
    if (!ReadLength(&length)) return Malformed(field);
    const Limit outer = in_.PushLimit(length);
    while (in_.BytesUntilLimit() > 0) {
      absl::Status status = on_element();
      if (!status.ok()) return status;
    }
    in_.PopLimit(outer);
    return absl::OkStatus();
  }

  // Replaces `views` with views of the field's bytes, in order, none of them empty.
  template <std::size_t kInlined>
  absl::Status ReadViews(absl::string_view field, absl::InlinedVector<ConstBytes, kInlined>& views,
                         std::int64_t& size) {
    int left = 0;
    if (!ReadLength(&left)) return Malformed(field);
    views.clear();
    size = left;
    while (left > 0) {
      const ConstBytes view = NextView(left);
      if (view.empty()) return Malformed(field);
      views.push_back(view);
      left -= static_cast<int>(view.size());
    }
    return absl::OkStatus();
  }

  // Merges a submessage into a generated one.
  absl::Status MergeInto(absl::string_view field, google::protobuf::MessageLite& message);

  absl::Status SkipUnknown(std::uint32_t tag);

  // "inputs[1]" within ReadElement, else empty.
  std::string Within() const;

  // The error of a field whose form is wrong.
  absl::Status Malformed(absl::string_view field) const;

 private:
  using Limit = google::protobuf::io::CodedInputStream::Limit;

  absl::Status CheckSize() const;

  template <typename OnField>
  absl::Status ReadFields(absl::string_view where, OnField& on_field) {
    while (const std::uint32_t tag = ReadTag()) {
      absl::Status status = on_field(tag);
      if (!status.ok()) return status;
    }
    return in_.ConsumedEntireMessage() ? absl::OkStatus() : Malformed(where);
  }

  std::uint32_t ReadTag();
  bool ReadLength(int* length);
  // The next contiguous bytes, at most `most`; empty at the end.
  ConstBytes NextView(int most);
  bool Skip(std::uint32_t tag, int depth);

  const absl::string_view message_;
  const std::size_t bytes_;
  SliceStream stream_;
  google::protobuf::io::CodedInputStream in_;
  absl::string_view list_;  // The list of the element that is being read; empty outside.
  std::size_t index_ = 0;
};

}  // namespace normd

#endif  // NORMD_WIRE_MESSAGE_READER_H_
