// Writes fields as proto3 does: zeros and empty texts are left out. Callers first add up the sizes,
// then write the fields into memory of that size.

#ifndef NORMD_WIRE_MESSAGE_WRITER_H_
#define NORMD_WIRE_MESSAGE_WRITER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace normd {

// Sizes of a field with its tag. Every field here has a number below 16, so its tag takes one byte.
inline std::size_t IntFieldSize(std::int64_t value) {
  using Wire = google::protobuf::internal::WireFormatLite;
  return value == 0 ? 0 : 1 + Wire::Int64Size(value);
}
// A submessage's size; it is written even when it is empty.
inline std::size_t SubmessageSize(std::size_t size) {
  return 1 + google::protobuf::internal::WireFormatLite::LengthDelimitedSize(size);
}
inline std::size_t BytesFieldSize(std::size_t size) { return size == 0 ? 0 : SubmessageSize(size); }

// Writes from `out` on; the caller has made room. Not thread-safe.
class MessageWriter {
 public:
  explicit MessageWriter(char* out) : out_(reinterpret_cast<std::uint8_t*>(out)) {}

  void WriteInt(int field, std::int64_t value) {
    if (value != 0) out_ = Wire::WriteInt64ToArray(field, value, out_);
  }
  void WriteText(int field, absl::string_view text) {
    if (text.empty()) return;
    WriteLength(field, text.size());
    out_ = std::copy(text.begin(), text.end(), out_);
  }
  // The tag and the length of `size` bytes to come.
  void WriteLength(int field, std::size_t size) {
    out_ = Wire::WriteTagToArray(field, Wire::WIRETYPE_LENGTH_DELIMITED, out_);
    out_ = Coded::WriteVarint32ToArray(static_cast<std::uint32_t>(size), out_);
  }
  void WriteVarint(std::int64_t value) {
    out_ = Coded::WriteVarint64ToArray(static_cast<std::uint64_t>(value), out_);
  }

  const char* position() const { return reinterpret_cast<const char*>(out_); }

 private:
  using Wire = google::protobuf::internal::WireFormatLite;
  using Coded = google::protobuf::io::CodedOutputStream;

  std::uint8_t* out_;
};

}  // namespace normd

#endif  // NORMD_WIRE_MESSAGE_WRITER_H_
