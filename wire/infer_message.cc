#include "wire/infer_message.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "inference/grpc_service.pb.h"

namespace normd {
namespace {

using google::protobuf::internal::WireFormatLite;
using Input = inference::ModelInferRequest_InferInputTensor;
using Output = inference::ModelInferResponse_InferOutputTensor;
using Wanted = inference::ModelInferRequest_InferRequestedOutputTensor;
using Request = inference::ModelInferRequest;
using Response = inference::ModelInferResponse;
using Contents = inference::InferTensorContents;
using Parameter = inference::InferParameter;

constexpr bool Same(int a, int b) { return a == b; }

// Inputs and outputs, requests and responses, have their fields at the same numbers, but for the
// raw contents.
static_assert(Same(Input::kNameFieldNumber, Output::kNameFieldNumber));
static_assert(Same(Input::kDatatypeFieldNumber, Output::kDatatypeFieldNumber));
static_assert(Same(Input::kShapeFieldNumber, Output::kShapeFieldNumber));
static_assert(Same(Input::kParametersFieldNumber, Output::kParametersFieldNumber));
static_assert(Same(Input::kContentsFieldNumber, Output::kContentsFieldNumber));
static_assert(Same(Request::kModelNameFieldNumber, Response::kModelNameFieldNumber));
static_assert(Same(Request::kModelVersionFieldNumber, Response::kModelVersionFieldNumber));
static_assert(Same(Request::kIdFieldNumber, Response::kIdFieldNumber));
static_assert(Same(Request::kParametersFieldNumber, Response::kParametersFieldNumber));
static_assert(Same(Request::kInputsFieldNumber, Response::kOutputsFieldNumber));

// Of an entry of a map, by protobuf's rule.
constexpr int kKeyField = 1;
constexpr int kValueField = 2;

constexpr absl::string_view kFinalResponse = "triton_final_response";
constexpr absl::string_view kSharedMemory = "shared_memory_";
constexpr absl::string_view kRegion = "shared_memory_region";
constexpr absl::string_view kRegionOffset = "shared_memory_offset";
constexpr absl::string_view kRegionBytes = "shared_memory_byte_size";

absl::Status ReadDimension(MessageReader& reader, ReceivedInferTensor& tensor) {
  std::int64_t dim = 0;
  absl::Status status = reader.ReadInt(".shape", dim);
  if (!status.ok()) return status;
  if (tensor.shape.size() == kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: more than ", kMaxRank, " dimensions, wanted at most ", kMaxRank));
  }
  tensor.shape.push_back(dim);
  return absl::OkStatus();
}

// Elements of one field follow those of another only in a message that nobody means.
absl::Status NoteContents(const MessageReader& reader, InferContents field,
                          ReceivedInferTensor& tensor) {
  if (tensor.contents != InferContents::kNone && tensor.contents != field) {
    return absl::InvalidArgumentError(absl::StrCat(reader.Within(),
                                                   ".contents: ", Name(tensor.contents), " and ",
                                                   Name(field), ", wanted at most one of them"));
  }
  tensor.contents = field;
  return absl::OkStatus();
}

// Makes the tensor's elements so far a copy, to which more are appended.
std::string& Own(ReceivedInferTensor& tensor) {
  if (tensor.owned != nullptr) return *tensor.owned;
  tensor.owned = std::make_shared<std::string>();
  for (const ConstBytes view : tensor.data) {
    tensor.owned->append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  return *tensor.owned;
}

// Packed elements are on the wire what they are in memory: little-endian, side by side.
absl::Status ReadPackedElements(MessageReader& reader, InferContents field, std::size_t size,
                                ReceivedInferTensor& tensor) {
  absl::InlinedVector<ConstBytes, 4> views;
  std::int64_t bytes = 0;
  absl::Status status = reader.ReadViews(".contents", views, bytes);
  if (!status.ok()) return status;
  if (bytes % static_cast<std::int64_t>(size) != 0) return reader.Malformed(".contents");
  if (bytes == 0) return absl::OkStatus();
  if (status = NoteContents(reader, field, tensor); !status.ok()) return status;
  const bool first = tensor.data_bytes == 0;
  tensor.data_bytes += bytes;
  if (first) {
    tensor.data = std::move(views);
    return absl::OkStatus();
  }
  // A view for each of many small fields would take more memory than their bytes.
  std::string& owned = Own(tensor);
  for (const ConstBytes view : views) {
    owned.append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  return absl::OkStatus();
}

absl::Status ReadElement(MessageReader& reader, InferContents field, std::size_t size,
                         ReceivedInferTensor& tensor) {
  char element[8];
  absl::Status status = reader.ReadFixed(".contents", element, size);
  if (!status.ok()) return status;
  if (status = NoteContents(reader, field, tensor); !status.ok()) return status;
  Own(tensor).append(element, size);
  tensor.data_bytes += static_cast<std::int64_t>(size);
  return absl::OkStatus();
}

// Indexes take up to eight times their bytes on the wire, before anything is admitted.
constexpr std::int64_t kMaxInt64Contents = std::int64_t{64} << 10;

absl::Status ReadInt64(MessageReader& reader, ReceivedInferTensor& tensor) {
  std::int64_t value = 0;
  absl::Status status = reader.ReadInt(".contents", value);
  if (status.ok()) status = NoteContents(reader, InferContents::kInt64, tensor);
  if (!status.ok()) return status;
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(value));
  if (tensor.data_bytes == kMaxInt64Contents * kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.Within(), ".contents: more than ", kMaxInt64Contents, " in ",
                     Name(InferContents::kInt64), ", wanted raw_input_contents for so many"));
  }
  Own(tensor).append(reinterpret_cast<const char*>(&value), sizeof(value));
  tensor.data_bytes += kBytes;
  return absl::OkStatus();
}

absl::Status DropVarint(MessageReader& reader, InferContents field, ReceivedInferTensor& tensor) {
  std::int64_t value = 0;
  absl::Status status = reader.ReadInt(".contents", value);
  return status.ok() ? NoteContents(reader, field, tensor) : status;
}

absl::Status DropVarints(MessageReader& reader, InferContents field, ReceivedInferTensor& tensor) {
  return reader.ReadPacked(".contents", [&] { return DropVarint(reader, field, tensor); });
}

absl::Status ReadContents(MessageReader& reader, std::uint32_t tag, ReceivedInferTensor& tensor) {
  switch (tag) {
    case DelimitedTag(Contents::kFp32ContentsFieldNumber):
      return ReadPackedElements(reader, InferContents::kFp32, 4, tensor);
    case Fixed32Tag(Contents::kFp32ContentsFieldNumber):
      return ReadElement(reader, InferContents::kFp32, 4, tensor);
    case DelimitedTag(Contents::kFp64ContentsFieldNumber):
      return ReadPackedElements(reader, InferContents::kFp64, 8, tensor);
    case Fixed64Tag(Contents::kFp64ContentsFieldNumber):
      return ReadElement(reader, InferContents::kFp64, 8, tensor);
    case DelimitedTag(Contents::kInt64ContentsFieldNumber):
      return reader.ReadPacked(".contents", [&] { return ReadInt64(reader, tensor); });
    case VarintTag(Contents::kInt64ContentsFieldNumber): return ReadInt64(reader, tensor);
    case DelimitedTag(Contents::kBoolContentsFieldNumber):
    case DelimitedTag(Contents::kIntContentsFieldNumber):
    case DelimitedTag(Contents::kUintContentsFieldNumber):
    case DelimitedTag(Contents::kUint64ContentsFieldNumber):
      return DropVarints(reader, static_cast<InferContents>(tag >> 3), tensor);
    case VarintTag(Contents::kBoolContentsFieldNumber):
    case VarintTag(Contents::kIntContentsFieldNumber):
    case VarintTag(Contents::kUintContentsFieldNumber):
    case VarintTag(Contents::kUint64ContentsFieldNumber):
      return DropVarint(reader, static_cast<InferContents>(tag >> 3), tensor);
    case DelimitedTag(Contents::kBytesContentsFieldNumber): {
      absl::Status status = reader.SkipUnknown(tag);
      return status.ok() ? NoteContents(reader, InferContents::kBytes, tensor) : status;
    }
    default: return reader.SkipUnknown(tag);
  }
}
static_assert(static_cast<int>(InferContents::kBool) == Contents::kBoolContentsFieldNumber);
static_assert(static_cast<int>(InferContents::kFp32) == Contents::kFp32ContentsFieldNumber);
static_assert(static_cast<int>(InferContents::kBytes) == Contents::kBytesContentsFieldNumber);

absl::Status ReadField(MessageReader& reader, std::uint32_t tag, ReceivedInferTensor& tensor) {
  switch (tag) {
    case DelimitedTag(Input::kNameFieldNumber):
      return reader.ReadText(".name", kMaxNameBytes, tensor.name);
    case DelimitedTag(Input::kDatatypeFieldNumber):
      return reader.ReadText(".datatype", kMaxNameBytes, tensor.datatype);
    case VarintTag(Input::kShapeFieldNumber): return ReadDimension(reader, tensor);
    case DelimitedTag(Input::kShapeFieldNumber):
      return reader.ReadPacked(".shape", [&] { return ReadDimension(reader, tensor); });
    case DelimitedTag(Input::kParametersFieldNumber): {
      std::string key;
      ReceivedParameter value;
      return ReadTensorParameter(reader, key, value, tensor.shared_memory);
    }
    case DelimitedTag(Input::kContentsFieldNumber):
      return reader.ReadSubmessage(
          ".contents", [&](std::uint32_t inner) { return ReadContents(reader, inner, tensor); });
    default: return reader.SkipUnknown(tag);
  }
}

absl::Status ReadValue(MessageReader& reader, absl::string_view field, std::uint32_t tag,
                       ReceivedParameter& value) {
  using Kind = ReceivedParameter::Kind;
  switch (tag) {
    case VarintTag(Parameter::kBoolParamFieldNumber):
      value.kind = Kind::kBool;
      return reader.ReadInt(field, value.number);
    case VarintTag(Parameter::kInt64ParamFieldNumber):
      value.kind = Kind::kInt;
      return reader.ReadInt(field, value.number);
    case VarintTag(Parameter::kUint64ParamFieldNumber): {
      value.kind = Kind::kUint;
      absl::Status status = reader.ReadInt(field, value.number);
      if (value.number < 0) value.number = std::numeric_limits<std::int64_t>::max();
      return status;
    }
    case Fixed64Tag(Parameter::kDoubleParamFieldNumber): {
      value.kind = Kind::kDouble;
      char unused[8];
      return reader.ReadFixed(field, unused, sizeof(unused));
    }
    case DelimitedTag(Parameter::kStringParamFieldNumber): {
      value.kind = Kind::kText;
      return reader.ReadText(field, kMaxInferParameterBytes, value.text);
    }
    default: return reader.SkipUnknown(tag);
  }
}

std::size_t ShapeSize(const InferTensorHeader& tensor) {
  std::size_t size = 0;
  for (const std::int64_t dim : tensor.shape) size += WireFormatLite::Int64Size(dim);
  return size;
}

std::size_t ParametersSize(const SharedPartHeader& part);

std::size_t SizeOf(const InferTensorHeader& tensor) {
  return BytesFieldSize(tensor.name.size()) + BytesFieldSize(tensor.datatype.size()) +
         BytesFieldSize(ShapeSize(tensor)) + ParametersSize(tensor.shared_memory);
}

// Of an entry whose value is a number in one field.
std::size_t ParameterSize(absl::string_view key, std::int64_t value) {
  return BytesFieldSize(key.size()) + SubmessageSize(IntFieldSize(value));
}

// The entries of `parameters` with these names; a value of 0 is left out.
struct NumberParameter {
  absl::string_view key;
  int field;
  std::int64_t value;
};
using NumberParameters = std::array<NumberParameter, 3>;

// A tensor's, beside its region.
std::array<NumberParameter, 2> ParametersOf(const SharedPartHeader& part) {
  return {{{kRegionOffset, Parameter::kInt64ParamFieldNumber, part.offset},
           {kRegionBytes, Parameter::kInt64ParamFieldNumber, part.byte_size}}};
}

std::size_t RegionSize(const SharedPartHeader& part) {
  return BytesFieldSize(kRegion.size()) + SubmessageSize(BytesFieldSize(part.region.size()));
}

std::size_t ParametersSize(const SharedPartHeader& part) {
  if (part.region.empty()) return 0;
  std::size_t size = SubmessageSize(RegionSize(part));
  for (const NumberParameter& parameter : ParametersOf(part)) {
    if (parameter.value == 0) continue;
    size += SubmessageSize(ParameterSize(parameter.key, parameter.value));
  }
  return size;
}

NumberParameters ParametersOf(const InferMessageHead& head) {
  return {{{"priority", Parameter::kUint64ParamFieldNumber, head.priority},
           {"timeout", Parameter::kInt64ParamFieldNumber, head.timeout_us},
           {kFinalResponse, Parameter::kBoolParamFieldNumber, head.final_response ? 1 : 0}}};
}

std::size_t SizeOf(const WantedOutputHeader& output) {
  return BytesFieldSize(output.name.size()) + ParametersSize(output.shared_memory);
}

std::size_t SizeOf(const InferMessageHead& head) {
  std::size_t size = BytesFieldSize(head.model.size()) + BytesFieldSize(head.version.size()) +
                     BytesFieldSize(head.id.size());
  for (const NumberParameter& parameter : ParametersOf(head)) {
    if (parameter.value == 0) continue;
    size += SubmessageSize(ParameterSize(parameter.key, parameter.value));
  }
  for (const InferTensorHeader& tensor : head.tensors) size += SubmessageSize(SizeOf(tensor));
  for (const WantedOutputHeader& output : head.wanted_outputs) {
    size += SubmessageSize(SizeOf(output));
  }
  return size;
}

void WriteParameter(int map, const NumberParameter& parameter, MessageWriter& writer) {
  if (parameter.value == 0) return;
  writer.WriteLength(map, ParameterSize(parameter.key, parameter.value));
  writer.WriteText(kKeyField, parameter.key);
  writer.WriteLength(kValueField, IntFieldSize(parameter.value));
  writer.WriteInt(parameter.field, parameter.value);
}

void WriteParameters(int map, const SharedPartHeader& part, MessageWriter& writer) {
  if (part.region.empty()) return;
  writer.WriteLength(map, RegionSize(part));
  writer.WriteText(kKeyField, kRegion);
  writer.WriteLength(kValueField, BytesFieldSize(part.region.size()));
  writer.WriteText(Parameter::kStringParamFieldNumber, part.region);
  for (const NumberParameter& parameter : ParametersOf(part)) {
    WriteParameter(map, parameter, writer);
  }
}

void WriteTensors(absl::Span<const InferTensorHeader> tensors, MessageWriter& writer) {
  for (const InferTensorHeader& tensor : tensors) {
    writer.WriteLength(Request::kInputsFieldNumber, SizeOf(tensor));
    writer.WriteText(Input::kNameFieldNumber, tensor.name);
    writer.WriteText(Input::kDatatypeFieldNumber, tensor.datatype);
    if (!tensor.shape.empty()) {
      writer.WriteLength(Input::kShapeFieldNumber, ShapeSize(tensor));
      for (const std::int64_t dim : tensor.shape) writer.WriteVarint(dim);
    }
    WriteParameters(Input::kParametersFieldNumber, tensor.shared_memory, writer);
  }
}

void WriteWanted(absl::Span<const WantedOutputHeader> outputs, MessageWriter& writer) {
  for (const WantedOutputHeader& output : outputs) {
    writer.WriteLength(Request::kOutputsFieldNumber, SizeOf(output));
    writer.WriteText(Wanted::kNameFieldNumber, output.name);
    WriteParameters(Wanted::kParametersFieldNumber, output.shared_memory, writer);
  }
}

}  // namespace

absl::string_view Name(InferContents contents) {
  switch (contents) {
    case InferContents::kNone: return "";
    case InferContents::kBool: return "bool_contents";
    case InferContents::kInt: return "int_contents";
    case InferContents::kInt64: return "int64_contents";
    case InferContents::kUint: return "uint_contents";
    case InferContents::kUint64: return "uint64_contents";
    case InferContents::kFp32: return "fp32_contents";
    case InferContents::kFp64: return "fp64_contents";
    case InferContents::kBytes: return "bytes_contents";
  }
  return "";
}

absl::Status ReadParameter(MessageReader& reader, absl::string_view field, std::string& key,
                           ReceivedParameter& value) {
  return reader.ReadSubmessage(field, [&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(kKeyField): return reader.ReadText(field, kMaxInferParameterBytes, key);
      case DelimitedTag(kValueField):
        return reader.ReadSubmessage(
            field, [&](std::uint32_t inner) { return ReadValue(reader, field, inner, value); });
      default: return reader.SkipUnknown(tag);
    }
  });
}

absl::Status ReadTensorParameter(MessageReader& reader, std::string& key, ReceivedParameter& value,
                                 std::unique_ptr<ReceivedSharedMemory>& shared_memory) {
  absl::Status status = ReadParameter(reader, ".parameters", key, value);
  if (!status.ok() || !absl::StartsWith(key, kSharedMemory)) return status;
  if (shared_memory == nullptr) shared_memory = std::make_unique<ReceivedSharedMemory>();
  if (key == kRegion) {
    shared_memory->region = std::move(value);
  } else if (key == kRegionOffset) {
    shared_memory->offset = std::move(value);
  } else if (key == kRegionBytes) {
    shared_memory->byte_size = std::move(value);
  } else {
    shared_memory->unknown = key;
  }
  return status;
}

absl::Status ReadInferTensor(MessageReader& reader, absl::string_view list,
                             ReceivedInferTensors& tensors) {
  if (tensors.size() == kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(list, ": more than ", kMaxTensors, ", wanted at most ", kMaxTensors));
  }
  const std::size_t index = tensors.size();
  ReceivedInferTensor& tensor = tensors.emplace_back();
  absl::Status status = reader.ReadElement(
      list, index, [&](std::uint32_t tag) { return ReadField(reader, tag, tensor); });
  if (tensor.owned != nullptr) {
    tensor.data.assign(1, ConstBytes(reinterpret_cast<const std::byte*>(tensor.owned->data()),
                                     tensor.owned->size()));
  }
  return status;
}

absl::Status ReadRawContents(MessageReader& reader, absl::string_view field,
                             ReceivedRawList& contents) {
  if (contents.size() == kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": more than ", kMaxTensors, ", wanted at most ", kMaxTensors));
  }
  ReceivedRawContents& raw = contents.emplace_back();
  return reader.ReadViews(field, raw.data, raw.data_bytes);
}

absl::Status TakeRawContents(RawContentsFor whose, absl::string_view field,
                             ReceivedRawList contents, absl::string_view list,
                             ReceivedInferTensors& tensors) {
  if (contents.empty()) return absl::OkStatus();
  const auto has_contents = [whose](const ReceivedInferTensor& tensor) {
    return whose == RawContentsFor::kAll || tensor.shared_memory == nullptr;
  };
  const auto wanted =
      static_cast<std::size_t>(std::count_if(tensors.begin(), tensors.end(), has_contents));
  if (contents.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", contents.size(), ", wanted ", wanted, ", one for each of ", list,
                     wanted == tensors.size() ? "" : " that is not in shared memory"));
  }
  auto next = contents.begin();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!has_contents(tensors[i])) continue;
    if (tensors[i].contents != InferContents::kNone) {
      return absl::InvalidArgumentError(absl::StrCat(list, "[", i,
                                                     "].contents: ", Name(tensors[i].contents),
                                                     " beside ", field, ", wanted one of the two"));
    }
    tensors[i].data = std::move(next->data);
    tensors[i].data_bytes = next->data_bytes;
    ++next;
  }
  return absl::OkStatus();
}

EncodedMessage EncodeInferMessage(InferMessageKind kind, const InferMessageHead& head) {
  const int raw_field = kind == InferMessageKind::kRequest
                            ? int{Request::kRawInputContentsFieldNumber}
                            : int{Response::kRawOutputContentsFieldNumber};
  const std::size_t fields = SizeOf(head);
  std::size_t raw = 0;
  std::size_t data = 0;
  for (const InferTensorHeader& tensor : head.tensors) {
    // As clients send them: a request's tensors in shared memory have none, a response's have.
    if (kind == InferMessageKind::kRequest && !tensor.shared_memory.region.empty()) continue;
    raw += SubmessageSize(static_cast<std::size_t>(tensor.data_bytes));
    data += static_cast<std::size_t>(tensor.data_bytes);
  }
  const bool wrapped = kind == InferMessageKind::kStreamResponse;
  const std::size_t whole = fields + raw;
  const std::size_t prefix = wrapped ? SubmessageSize(whole) - whole : 0;
  EncodedMessage message;
  message.bytes.resize(prefix + whole - data);
  MessageWriter writer(message.bytes.data());
  if (wrapped) {
    writer.WriteLength(inference::ModelStreamInferResponse::kInferResponseFieldNumber, whole);
  }
  writer.WriteText(Request::kModelNameFieldNumber, head.model);
  writer.WriteText(Request::kModelVersionFieldNumber, head.version);
  writer.WriteText(Request::kIdFieldNumber, head.id);
  for (const NumberParameter& parameter : ParametersOf(head)) {
    WriteParameter(Request::kParametersFieldNumber, parameter, writer);
  }
  WriteTensors(head.tensors, writer);
  WriteWanted(head.wanted_outputs, writer);
  for (const InferTensorHeader& tensor : head.tensors) {
    if (kind == InferMessageKind::kRequest && !tensor.shared_memory.region.empty()) {
      message.ends.push_back(static_cast<std::size_t>(writer.position() - message.bytes.data()));
      continue;
    }
    writer.WriteLength(raw_field, static_cast<std::size_t>(tensor.data_bytes));
    message.ends.push_back(static_cast<std::size_t>(writer.position() - message.bytes.data()));
  }
  return message;
}

}  // namespace normd
