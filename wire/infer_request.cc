#include "wire/infer_request.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.pb.h"
#include "wire/message_reader.h"

namespace normd {
namespace {

using Request = inference::ModelInferRequest;
using Wanted = inference::ModelInferRequest_InferRequestedOutputTensor;

absl::Status ReadRequestParameter(MessageReader& reader, InferRequestView& request) {
  std::string key;
  ReceivedParameter value;
  absl::Status status = ReadParameter(reader, "parameters", key, value);
  if (key == "priority") request.priority = value;
  if (key == "timeout") request.timeout = value;
  return status;
}

absl::Status ReadOutputField(MessageReader& reader, std::uint32_t tag,
                             ReceivedInferOutput& output) {
  switch (tag) {
    case DelimitedTag(Wanted::kNameFieldNumber):
      return reader.ReadText(".name", kMaxNameBytes, output.name);
    case DelimitedTag(Wanted::kParametersFieldNumber): {
      std::string key;
      ReceivedParameter value;
      absl::Status status = ReadTensorParameter(reader, key, value, output.shared_memory);
      if (key == "classification") output.classification = value;
      return status;
    }
    default: return reader.SkipUnknown(tag);
  }
}

}  // namespace

absl::StatusOr<InferRequestView> DecodeInferRequest(absl::Span<const ConstBytes> slices) {
  MessageReader reader("request", slices);
  InferRequestView request;
  ReceivedRawList raw;
  absl::Status status = reader.ReadMessage([&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(Request::kModelNameFieldNumber):
        return reader.ReadText("model_name", kMaxNameBytes, request.model);
      case DelimitedTag(Request::kModelVersionFieldNumber):
        return reader.ReadText("model_version", kMaxNameBytes, request.version);
      case DelimitedTag(Request::kIdFieldNumber):
        return reader.ReadText("id", kMaxInferIdBytes, request.id);
      case DelimitedTag(Request::kParametersFieldNumber):
        return ReadRequestParameter(reader, request);
      case DelimitedTag(Request::kInputsFieldNumber):
        return ReadInferTensor(reader, "inputs", request.inputs);
      case DelimitedTag(Request::kOutputsFieldNumber):
        return AppendElement(reader, "outputs", request.outputs,
                             [&](std::uint32_t field, ReceivedInferOutput& output) {
                               return ReadOutputField(reader, field, output);
                             });
      case DelimitedTag(Request::kRawInputContentsFieldNumber):
        return ReadRawContents(reader, "raw_input_contents", raw);
      default: return reader.SkipUnknown(tag);
    }
  });
  if (!status.ok()) return status;
  if (request.inputs.empty()) {
    return absl::InvalidArgumentError("inputs: none, wanted at least one");
  }
  status = TakeRawContents(RawContentsFor::kOutsideSharedMemory, "raw_input_contents",
                           std::move(raw), "inputs", request.inputs);
  if (!status.ok()) return status;
  return request;
}

std::string InferRequestId(absl::Span<const ConstBytes> slices) {
  MessageReader reader("request", slices);
  std::string id;
  // The fields after the id may be malformed; the id counts nevertheless.
  reader
      .ReadMessage([&](std::uint32_t tag) {
        if (tag != DelimitedTag(Request::kIdFieldNumber)) return reader.SkipUnknown(tag);
        std::string text;
        absl::Status status = reader.ReadText("id", kMaxInferIdBytes, text);
        if (status.ok()) id = std::move(text);
        return status;
      })
      .IgnoreError();
  return id;
}

absl::StatusOr<EncodedMessage> EncodeInferRequest(const InferMessageHead& head) {
  constexpr std::size_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max();
  // An upper bound for the bytes of the message beside the tensors.
  constexpr std::size_t kHeadBytes = 64 << 10;
  std::size_t bytes = 0;
  for (const InferTensorHeader& tensor : head.tensors) {
    const auto more = static_cast<std::size_t>(tensor.data_bytes);
    if (more > kMaxMessageBytes - kHeadBytes - bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input: ", more, " bytes after ", bytes, ", wanted at most ",
          kMaxMessageBytes - kHeadBytes, " in all, the most that one message carries"));
    }
    bytes += more;
  }
  return EncodeInferMessage(InferMessageKind::kRequest, head);
}

}  // namespace normd
