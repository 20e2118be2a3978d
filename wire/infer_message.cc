#include "wire/infer_message.h"

#include <array>

#include "inference/grpc_service.pb.h"
#include "wire/infer_parameter.h"

namespace normd {
namespace {

using google::protobuf::internal::WireFormatLite;
using Input = inference::ModelInferRequest_InferInputTensor;
using Output = inference::ModelInferResponse_InferOutputTensor;
using Wanted = inference::ModelInferRequest_InferRequestedOutputTensor;
using Request = inference::ModelInferRequest;
using Response = inference::ModelInferResponse;
using Parameter = inference::InferParameter;

constexpr bool Same(int a, int b) { return a == b; }

// Inputs and outputs have their fields at the same numbers in requests and responses. Only the raw
// contents differ.
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

constexpr absl::string_view kFinalResponse = "triton_final_response";

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

// The size of an entry whose value is a number in one field.
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

// The parameters of one tensor, beside its region.
std::array<NumberParameter, 2> ParametersOf(const SharedPartHeader& part) {
  return {{{kRegionOffsetParameter, Parameter::kInt64ParamFieldNumber, part.offset},
           {kRegionBytesParameter, Parameter::kInt64ParamFieldNumber, part.byte_size}}};
}

// The size of an entry whose value is a text.
std::size_t ParameterSize(absl::string_view key, absl::string_view text) {
  return BytesFieldSize(key.size()) + SubmessageSize(BytesFieldSize(text.size()));
}

std::size_t ParametersSize(const SharedPartHeader& part) {
  if (part.region.empty()) return 0;
  std::size_t size = SubmessageSize(ParameterSize(kRegionParameter, part.region));
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
  writer.WriteText(kMapKeyField, parameter.key);
  writer.WriteLength(kMapValueField, IntFieldSize(parameter.value));
  writer.WriteInt(parameter.field, parameter.value);
}

// Writes nothing for an empty text.
void WriteParameter(int map, absl::string_view key, absl::string_view text, MessageWriter& writer) {
  if (text.empty()) return;
  writer.WriteLength(map, ParameterSize(key, text));
  writer.WriteText(kMapKeyField, key);
  writer.WriteLength(kMapValueField, BytesFieldSize(text.size()));
  writer.WriteText(Parameter::kStringParamFieldNumber, text);
}

void WriteParameters(int map, const SharedPartHeader& part, MessageWriter& writer) {
  if (part.region.empty()) return;
  WriteParameter(map, kRegionParameter, part.region, writer);
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

EncodedMessage EncodeInferMessage(InferMessageKind kind, const InferMessageHead& head) {
  const int raw_field = kind == InferMessageKind::kRequest
                            ? int{Request::kRawInputContentsFieldNumber}
                            : int{Response::kRawOutputContentsFieldNumber};
  const std::size_t fields = SizeOf(head);
  std::size_t raw = 0;
  std::size_t data = 0;
  for (const InferTensorHeader& tensor : head.tensors) {
    // In a request, tensors in shared memory have no raw contents; in a response they have.
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
