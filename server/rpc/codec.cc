#include "server/rpc/codec.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/shape.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/stubs/common.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/rpc/slice_stream.h"

namespace normd {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

constexpr std::uint32_t Tag(int field, Wire::WireType type) {
  return static_cast<std::uint32_t>(field) << Wire::kTagTypeBits | type;
}
constexpr int kMaxGroupDepth = 100;  // As the generated classes.
constexpr auto kVarint = Wire::WIRETYPE_VARINT;
constexpr auto kDelimited = Wire::WIRETYPE_LENGTH_DELIMITED;

constexpr absl::string_view kInputNames[] = {"inputs[0]", "inputs[1]"};
static_assert(std::size(kInputNames) == kMaxInputs);

class RequestReader {
 public:
  explicit RequestReader(CodedInputStream& in) : in_(in) {}

  absl::Status Read(NormalizeRequestView& request) {
    while (const std::uint32_t tag = ReadTag()) {
      absl::Status status;
      switch (tag) {
        case Tag(v1::NormalizeRequest::kModelFieldNumber, kDelimited):
          status = ReadName("model", request.model);
          break;
        case Tag(v1::NormalizeRequest::kVersionFieldNumber, kVarint):
          status = ReadInt("version", request.version);
          break;
        case Tag(v1::NormalizeRequest::kInputsFieldNumber, kDelimited):
          if (request.inputs.size() == kMaxInputs) {
            return absl::InvalidArgumentError(
                absl::StrCat("inputs: more than ", kMaxInputs, ", wanted at most ", kMaxInputs));
          }
          within_ = kInputNames[request.inputs.size()];
          status = ReadTensor(request.inputs.emplace_back());
          within_ = "";
          break;
        case Tag(v1::NormalizeRequest::kPriorityFieldNumber, kVarint):
          status = ReadEnum("priority", request.priority);
          break;
        case Tag(v1::NormalizeRequest::kQueueTimeoutNsFieldNumber, kVarint):
          status = ReadInt("queue_timeout_ns", request.queue_timeout_ns);
          break;
        case Tag(v1::NormalizeRequest::kPrecisionFieldNumber, kVarint):
          status = ReadEnum("precision", request.precision);
          break;
        default: status = SkipUnknown(tag);
      }
      if (!status.ok()) return status;
    }
    if (!in_.ConsumedEntireMessage()) return Malformed("a tag");
    if (request.inputs.empty()) {
      return absl::InvalidArgumentError("inputs: none, wanted at least one");
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Malformed(absl::string_view where) const {
    return absl::InvalidArgumentError(absl::StrCat("request: malformed protobuf in ", within_,
                                                   where, " near byte ", in_.CurrentPosition()));
  }

  // The coded stream takes tags and lengths of up to ten bytes, the generated classes, like the
  // specification, of at most five.
  static constexpr int kMaxVarint32Bytes = 5;

  // 0 at the end of the message, and then ConsumedEntireMessage tells whether it is a proper one.
  std::uint32_t ReadTag() {
    const int begin = in_.CurrentPosition();
    const std::uint32_t tag = in_.ReadTag();
    return in_.CurrentPosition() - begin <= kMaxVarint32Bytes ? tag : 0;
  }

  // The length of what follows, which lies within the message.
  bool ReadLength(int* length) {
    const int begin = in_.CurrentPosition();
    return in_.ReadVarintSizeAsInt(length) && in_.CurrentPosition() - begin <= kMaxVarint32Bytes &&
           *length <= in_.BytesUntilLimit();
  }

  absl::Status SkipUnknown(std::uint32_t tag) {
    if (!Skip(tag, /*depth=*/0)) return Malformed("an unknown field");
    return absl::OkStatus();
  }

  bool Skip(std::uint32_t tag, int depth) {
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
        const std::uint32_t end = Tag(Wire::GetTagFieldNumber(tag), Wire::WIRETYPE_END_GROUP);
        for (std::uint32_t inner = ReadTag(); inner != end; inner = ReadTag()) {
          if (inner == 0 || !Skip(inner, depth + 1)) return false;
        }
        return true;
      }
      case Wire::WIRETYPE_FIXED32: return in_.Skip(4);
      default: return false;  // The end of a group that did not begin, or no wire type.
    }
  }

  absl::Status ReadInt(absl::string_view field, std::int64_t& value) {
    std::uint64_t raw = 0;
    if (!in_.ReadVarint64(&raw)) return Malformed(field);
    value = static_cast<std::int64_t>(raw);
    return absl::OkStatus();
  }

  // Values that are no enumerators are kept.
  template <typename Enum>
  absl::Status ReadEnum(absl::string_view field, Enum& value) {
    std::int64_t number = 0;
    absl::Status status = ReadInt(field, number);
    value = static_cast<Enum>(static_cast<int>(number));
    return status;
  }

  absl::Status ReadName(absl::string_view field, std::string& name) {
    int length = 0;
    if (!ReadLength(&length)) return Malformed(field);
    if (length > kMaxNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(within_, field, ": ", length, " bytes, wanted at most ", kMaxNameBytes));
    }
    if (!in_.ReadString(&name, length) ||
        !google::protobuf::internal::IsStructurallyValidUTF8(name)) {
      return Malformed(absl::StrCat(field, " (not UTF-8)"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensor(TensorView& tensor) {
    int length = 0;
    if (!ReadLength(&length)) return Malformed("");
    const CodedInputStream::Limit outer = in_.PushLimit(length);
    while (const std::uint32_t tag = ReadTag()) {
      absl::Status status;
      switch (tag) {
        case Tag(v1::Tensor::kNameFieldNumber, kDelimited):
          status = ReadName(".name", tensor.name);
          break;
        case Tag(v1::Tensor::kDtypeFieldNumber, kVarint):
          status = ReadEnum(".dtype", tensor.dtype);
          break;
        case Tag(v1::Tensor::kShapeFieldNumber, kVarint): status = ReadDimension(tensor); break;
        case Tag(v1::Tensor::kShapeFieldNumber, kDelimited): status = ReadPacked(tensor); break;
        case Tag(v1::Tensor::kDataFieldNumber, kDelimited): status = ReadData(tensor); break;
        default: status = SkipUnknown(tag);
      }
      if (!status.ok()) return status;
    }
    if (!in_.ConsumedEntireMessage()) return Malformed("");
    in_.PopLimit(outer);
    return absl::OkStatus();
  }

  absl::Status ReadDimension(TensorView& tensor) {
    std::int64_t dim = 0;
    absl::Status status = ReadInt(".shape", dim);
    if (!status.ok()) return status;
    if (tensor.shape.size() == kMaxRank) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: more than ", kMaxRank, " dimensions, wanted at most ", kMaxRank));
    }
    tensor.shape.push_back(dim);
    return absl::OkStatus();
  }

  absl::Status ReadPacked(TensorView& tensor) {
    int length = 0;
    if (!ReadLength(&length)) return Malformed(".shape");
    const CodedInputStream::Limit outer = in_.PushLimit(length);
    while (in_.BytesUntilLimit() > 0) {
      absl::Status status = ReadDimension(tensor);
      if (!status.ok()) return status;
    }
    in_.PopLimit(outer);
    return absl::OkStatus();
  }

  absl::Status ReadData(TensorView& tensor) {
    int left = 0;
    if (!ReadLength(&left)) return Malformed(".data");
    tensor.data.clear();
    tensor.data_bytes = left;
    while (left > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!in_.GetDirectBufferPointer(&data, &size)) return Malformed(".data");
      size = std::min(size, left);
      tensor.data.emplace_back(static_cast<const std::byte*>(data), static_cast<std::size_t>(size));
      in_.Skip(size);
      left -= size;
    }
    return absl::OkStatus();
  }

  CodedInputStream& in_;
  absl::string_view within_;  // The message whose fields are being read, for errors.
};

// Writing, as proto3 does it: fields in the order of their numbers, those of value 0 left out.

std::size_t IntSize(std::int64_t value) {
  return value == 0 ? 0 : 1 + Wire::Int64Size(value);  // Every tag here takes one byte.
}

std::size_t BytesSize(std::size_t size) {
  return size == 0 ? 0 : 1 + Wire::LengthDelimitedSize(size);
}

std::uint8_t* WriteInt(int field, std::int64_t value, std::uint8_t* out) {
  return value == 0 ? out : Wire::WriteInt64ToArray(field, value, out);
}

// The tag and the length of `size` bytes to come.
std::uint8_t* WriteLength(int field, std::size_t size, std::uint8_t* out) {
  out = Wire::WriteTagToArray(field, kDelimited, out);
  return CodedOutputStream::WriteVarint32ToArray(static_cast<std::uint32_t>(size), out);
}

std::uint8_t* WriteText(int field, absl::string_view text, std::uint8_t* out) {
  if (text.empty()) return out;
  out = WriteLength(field, text.size(), out);
  return std::copy(text.begin(), text.end(), out);
}

}  // namespace

absl::StatusOr<NormalizeRequestView> DecodeNormalizeRequest(absl::Span<const ConstBytes> slices) {
  std::size_t bytes = 0;
  for (const ConstBytes slice : slices) {
    bytes += slice.size();  // Sizes of memory that exists: the sum cannot overflow.
  }
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: ", bytes, " bytes, wanted less than 2 GiB"));
  }
  SliceStream stream(slices);
  CodedInputStream in(&stream);
  in.PushLimit(static_cast<int>(bytes));
  NormalizeRequestView request;
  absl::Status status = RequestReader(in).Read(request);
  if (!status.ok()) return status;
  return request;
}

std::string EncodeNormalizeResponseHead(const NormalizeResponseHead& head) {
  using Response = v1::NormalizeResponse;
  std::size_t stages = 0;
  for (const std::int64_t ns : head.stage_ns) stages += IntSize(ns);
  const std::size_t batch = IntSize(head.batch_id) + IntSize(head.batch_requests) +
                            IntSize(head.batch_bytes) + BytesSize(head.lane.size());
  std::size_t shape = 0;
  for (const std::int64_t dim : head.shape) shape += Wire::Int64Size(dim);
  const std::size_t data = static_cast<std::size_t>(head.data_bytes);
  const std::size_t tensor = IntSize(head.dtype) + BytesSize(shape) + BytesSize(data);

  const std::size_t total =
      BytesSize(head.model.size()) + IntSize(head.version) + 1 + Wire::LengthDelimitedSize(stages) +
      1 + Wire::LengthDelimitedSize(batch) + 1 + Wire::LengthDelimitedSize(tensor);
  std::string encoded(total - data, '\0');
  auto* out = reinterpret_cast<std::uint8_t*>(encoded.data());
  out = WriteText(Response::kModelFieldNumber, head.model, out);
  out = WriteInt(Response::kVersionFieldNumber, head.version, out);
  out = WriteLength(Response::kStagesFieldNumber, stages, out);
  for (std::size_t i = 0; i < head.stage_ns.size(); ++i) {
    out =
        WriteInt(static_cast<int>(i) + v1::StageTimes::kDecodeNsFieldNumber, head.stage_ns[i], out);
  }
  out = WriteLength(Response::kBatchFieldNumber, batch, out);
  out = WriteInt(v1::BatchInfo::kIdFieldNumber, head.batch_id, out);
  out = WriteInt(v1::BatchInfo::kRequestsFieldNumber, head.batch_requests, out);
  out = WriteInt(v1::BatchInfo::kBytesFieldNumber, head.batch_bytes, out);
  out = WriteText(v1::BatchInfo::kLaneFieldNumber, head.lane, out);
  out = WriteLength(Response::kOutputsFieldNumber, tensor, out);
  out = WriteInt(v1::Tensor::kDtypeFieldNumber, head.dtype, out);
  if (shape > 0) {
    out = WriteLength(v1::Tensor::kShapeFieldNumber, shape, out);
    for (const std::int64_t dim : head.shape) {
      out = CodedOutputStream::WriteVarint64ToArray(static_cast<std::uint64_t>(dim), out);
    }
  }
  if (data > 0) WriteLength(v1::Tensor::kDataFieldNumber, data, out);
  return encoded;
}

}  // namespace normd
