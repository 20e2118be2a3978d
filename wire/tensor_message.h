// The Tensor message, read as views of the received bytes and written without the data, which lies
// elsewhere.

#ifndef NORMD_WIRE_TENSOR_MESSAGE_H_
#define NORMD_WIRE_TENSOR_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/shape.h"
#include "kernels/types.h"
#include "normd/v1/model_config.pb.h"
#include "wire/message_reader.h"
#include "wire/message_writer.h"

namespace normd {

// The longest name of a model or a tensor that is read.
inline constexpr int kMaxNameBytes = 128;
// The most tensors of one message that are read. No operation takes so many. The bound is for
// hostile messages: an empty tensor takes two bytes there, and its views a hundred times that.
inline constexpr std::size_t kMaxTensors = 32;

// The longest name of a region of shared memory that is read.
inline constexpr int kMaxSharedRegionBytes = 1024;

// InvalidArgument, "<list>: more than ...", if a repeated field has kMaxTensors elements.
absl::Status CheckRoom(absl::string_view list, std::size_t elements);

// Reads the next element of the repeated message `list`, by read(tag, element) for each of its
// fields, and appends it. InvalidArgument for more than kMaxTensors.
template <typename Elements, typename Read>
absl::Status AppendElement(MessageReader& reader, absl::string_view list, Elements& elements,
                           Read read) {
  const std::size_t index = elements.size();
  if (absl::Status status = CheckRoom(list, index); !status.ok()) return status;
  auto& element = elements.emplace_back();
  return reader.ReadElement(list, index, [&](std::uint32_t tag) { return read(tag, element); });
}

v1::DataType ToProtocol(norm::DType dtype);
// InvalidArgument, "dtype: ...", for a type that is missing or unknown.
absl::StatusOr<norm::DType> FromProtocol(v1::DataType dtype);

// A received SharedMemory message, as sent.
struct ReceivedSharedPart {
  std::string region;
  std::int64_t offset = 0;
  std::int64_t byte_size = 0;
};

// Reads the SharedMemory message `field` and merges it into `part`.
absl::Status ReadSharedPart(MessageReader& reader, absl::string_view field,
                            std::optional<ReceivedSharedPart>& part);

// As sent: any numbers, at most kMaxRank of them.
using ReceivedShape = absl::InlinedVector<std::int64_t, 6>;

// Reads one element of the repeated field `shape`. InvalidArgument for more than kMaxRank.
absl::Status ReadDimension(MessageReader& reader, ReceivedShape& shape);

// A received Tensor message. `data` are views of the slices, in order, of any split and alignment.
struct ReceivedTensor {
  std::string name;
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;  // As sent: may be no enumerator.
  ReceivedShape shape;
  absl::InlinedVector<ConstBytes, 4> data;
  std::int64_t data_bytes = 0;
  std::optional<ReceivedSharedPart> shared_memory;
};

// Most messages have one or two, which need no allocation.
using ReceivedTensors = absl::InlinedVector<ReceivedTensor, 2>;

// Reads the next element of the repeated Tensor field `list` and appends it. InvalidArgument for
// more than kMaxTensors, for more dimensions than kMaxRank and for a name over kMaxNameBytes.
absl::Status ReadTensor(MessageReader& reader, absl::string_view list, ReceivedTensors& tensors);

// A part of shared memory to send; with an empty name nothing is sent.
struct SharedPartHeader {
  absl::string_view region;
  std::int64_t offset = 0;  // Neither number is negative.
  std::int64_t byte_size = 0;
};
// The size as a field with a number below 16, of any message.
std::size_t SharedPartSize(const SharedPartHeader& part);
void WriteSharedPart(int field, const SharedPartHeader& part, MessageWriter& writer);

// An output that a request names.
struct WantedOutputHeader {
  absl::string_view name;
  SharedPartHeader shared_memory = {};
};

// A Tensor message to send, without its data.
struct TensorHeader {
  absl::string_view name;
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;
  absl::Span<const std::int64_t> shape;  // No dimension is negative.
  std::int64_t data_bytes = 0;           // May be 0.
  SharedPartHeader shared_memory = {};   // Instead of data.
};

// A message to send, without its tensors' data. The message is `bytes` up to ends[0], the first
// tensor's data, `bytes` from there to ends[1], the second's data, and so on; it ends with the last
// tensor's data. Without tensors it is `bytes`.
struct EncodedMessage {
  absl::InlinedVector<char, 256> bytes;  // Most responses fit without an allocation.
  absl::InlinedVector<std::size_t, 4> ends;

  absl::string_view Part(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    return absl::string_view(bytes.data() + begin, ends[i] - begin);
  }
};

// The size of the repeated field with these tensors; `data_bytes` of it is their data.
struct TensorsSize {
  std::size_t total = 0;
  std::size_t data_bytes = 0;
};
TensorsSize SizeOfTensors(absl::Span<const TensorHeader> tensors);

// Writes the repeated Tensor field, the message's last, up to the data of each; appends to `ends`.
// `begin`: where the message begins.
void WriteTensors(int field, absl::Span<const TensorHeader> tensors, const char* begin,
                  MessageWriter& writer, absl::InlinedVector<std::size_t, 4>& ends);

}  // namespace normd

#endif  // NORMD_WIRE_TENSOR_MESSAGE_H_
