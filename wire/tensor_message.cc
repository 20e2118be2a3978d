#include "wire/tensor_message.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/wire_format_lite.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/data_type.h"

namespace normd {
namespace {

using google::protobuf::internal::WireFormatLite;

static_assert(NamesOf(norm::DType::kFloat32).protocol == v1::FLOAT32);
static_assert(NamesOf(norm::DType::kFloat64).protocol == v1::FLOAT64);
static_assert(NamesOf(norm::DType::kFloat16).protocol == v1::FLOAT16);
static_assert(NamesOf(norm::DType::kBFloat16).protocol == v1::BFLOAT16);
static_assert(NamesOf(norm::DType::kInt8).protocol == v1::INT8);
static_assert(NamesOf(norm::DType::kFloat8E4M3).protocol == v1::FLOAT8_E4M3);
static_assert(NamesOf(norm::DType::kInt64).protocol == v1::INT64);
static_assert(v1::DataType_MAX == v1::INT64, "a type that wire/data_type.h does not name");

absl::Status ReadField(MessageReader& reader, std::uint32_t tag, ReceivedTensor& tensor) {
  switch (tag) {
    case DelimitedTag(v1::Tensor::kNameFieldNumber):
      return reader.ReadText(".name", kMaxNameBytes, tensor.name);
    case VarintTag(v1::Tensor::kDtypeFieldNumber): return reader.ReadEnum(".dtype", tensor.dtype);
    case VarintTag(v1::Tensor::kShapeFieldNumber): return ReadDimension(reader, tensor.shape);
    case DelimitedTag(v1::Tensor::kShapeFieldNumber):
      return reader.ReadPacked(".shape", [&] { return ReadDimension(reader, tensor.shape); });
    case DelimitedTag(v1::Tensor::kDataFieldNumber):
      return reader.ReadViews(".data", tensor.data, tensor.data_bytes);
    case DelimitedTag(v1::Tensor::kSharedMemoryFieldNumber):
      return ReadSharedPart(reader, ".shared_memory", tensor.shared_memory);
    default: return reader.SkipUnknown(tag);
  }
}

std::size_t SizeOf(const SharedPartHeader& part) {
  return BytesFieldSize(part.region.size()) + IntFieldSize(part.offset) +
         IntFieldSize(part.byte_size);
}

std::size_t ShapeSize(const TensorHeader& tensor) {
  std::size_t size = 0;
  for (const std::int64_t dim : tensor.shape) size += WireFormatLite::Int64Size(dim);
  return size;
}

std::size_t SizeOf(const TensorHeader& tensor) {
  return BytesFieldSize(tensor.name.size()) + IntFieldSize(tensor.dtype) +
         BytesFieldSize(ShapeSize(tensor)) +
         BytesFieldSize(static_cast<std::size_t>(tensor.data_bytes)) +
         SharedPartSize(tensor.shared_memory);
}

}  // namespace

absl::Status ReadDimension(MessageReader& reader, ReceivedShape& shape) {
  std::int64_t dim = 0;
  absl::Status status = reader.ReadInt(".shape", dim);
  if (!status.ok()) return status;
  if (shape.size() == kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat(reader.Within(), ".shape: more than ", kMaxRank,
                                                   " dimensions, wanted at most ", kMaxRank));
  }
  shape.push_back(dim);
  return absl::OkStatus();
}

absl::Status CheckRoom(absl::string_view list, std::size_t elements) {
  if (elements < kMaxTensors) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(list, ": more than ", kMaxTensors, ", wanted at most ", kMaxTensors));
}

v1::DataType ToProtocol(norm::DType dtype) {
  return static_cast<v1::DataType>(NamesOf(dtype).protocol);
}

absl::StatusOr<norm::DType> FromProtocol(v1::DataType dtype) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::protocol, static_cast<int>(dtype));
  if (type != nullptr) return type->dtype;
  if (dtype == v1::DATA_TYPE_UNSPECIFIED) return absl::InvalidArgumentError("dtype: missing");
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: ", static_cast<int>(dtype), " is unknown"));
}

absl::Status ReadSharedPart(MessageReader& reader, absl::string_view field,
                            std::optional<ReceivedSharedPart>& part) {
  if (!part.has_value()) part.emplace();
  return reader.ReadSubmessage(field, [&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(v1::SharedMemory::kRegionFieldNumber):
        return reader.ReadText(".shared_memory.region", kMaxSharedRegionBytes, part->region);
      case VarintTag(v1::SharedMemory::kOffsetFieldNumber):
        return reader.ReadInt(field, part->offset);
      case VarintTag(v1::SharedMemory::kByteSizeFieldNumber):
        return reader.ReadInt(field, part->byte_size);
      default: return reader.SkipUnknown(tag);
    }
  });
}

std::size_t SharedPartSize(const SharedPartHeader& part) {
  return part.region.empty() ? 0 : SubmessageSize(SizeOf(part));
}

void WriteSharedPart(int field, const SharedPartHeader& part, MessageWriter& writer) {
  if (part.region.empty()) return;
  writer.WriteLength(field, SizeOf(part));
  writer.WriteText(v1::SharedMemory::kRegionFieldNumber, part.region);
  writer.WriteInt(v1::SharedMemory::kOffsetFieldNumber, part.offset);
  writer.WriteInt(v1::SharedMemory::kByteSizeFieldNumber, part.byte_size);
}

absl::Status ReadTensor(MessageReader& reader, absl::string_view list, ReceivedTensors& tensors) {
  return AppendElement(reader, list, tensors, [&](std::uint32_t tag, ReceivedTensor& tensor) {
    return ReadField(reader, tag, tensor);
  });
}

TensorsSize SizeOfTensors(absl::Span<const TensorHeader> tensors) {
  TensorsSize size;
  for (const TensorHeader& tensor : tensors) {
    size.total += SubmessageSize(SizeOf(tensor));
    size.data_bytes += static_cast<std::size_t>(tensor.data_bytes);
  }
  return size;
}

void WriteTensors(int field, absl::Span<const TensorHeader> tensors, const char* begin,
                  MessageWriter& writer, absl::InlinedVector<std::size_t, 4>& ends) {
  for (const TensorHeader& tensor : tensors) {
    writer.WriteLength(field, SizeOf(tensor));
    writer.WriteText(v1::Tensor::kNameFieldNumber, tensor.name);
    writer.WriteInt(v1::Tensor::kDtypeFieldNumber, tensor.dtype);
    if (!tensor.shape.empty()) {
      writer.WriteLength(v1::Tensor::kShapeFieldNumber, ShapeSize(tensor));
      for (const std::int64_t dim : tensor.shape) writer.WriteVarint(dim);
    }
    // This comes before the data, which ends the message; readers accept any order.
    WriteSharedPart(v1::Tensor::kSharedMemoryFieldNumber, tensor.shared_memory, writer);
    if (tensor.data_bytes > 0) {
      writer.WriteLength(v1::Tensor::kDataFieldNumber, static_cast<std::size_t>(tensor.data_bytes));
    }
    ends.push_back(static_cast<std::size_t>(writer.position() - begin));
  }
}

}  // namespace normd
