#include "wire/normalize_request.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "wire/message_reader.h"
#include "wire/message_writer.h"

namespace normd {

namespace {

absl::Status ReadOutput(MessageReader& reader, NormalizeRequestView& request) {
  const auto read = [&](std::uint32_t tag, ReceivedOutput& output) {
    switch (tag) {
      case DelimitedTag(v1::WantedOutput::kNameFieldNumber):
        return reader.ReadText(".name", kMaxNameBytes, output.name);
      case DelimitedTag(v1::WantedOutput::kSharedMemoryFieldNumber):
        return ReadSharedPart(reader, ".shared_memory", output.shared_memory);
      default: return reader.SkipUnknown(tag);
    }
  };
  return AppendElement(reader, "outputs", request.outputs, read);
}

std::size_t OutputBytes(const WantedOutputHeader& output) {
  return BytesFieldSize(output.name.size()) + SharedPartSize(output.shared_memory);
}

std::size_t OutputsSize(absl::Span<const WantedOutputHeader> outputs) {
  std::size_t size = 0;
  for (const WantedOutputHeader& output : outputs) size += SubmessageSize(OutputBytes(output));
  return size;
}

void WriteOutputs(absl::Span<const WantedOutputHeader> outputs, MessageWriter& writer) {
  for (const WantedOutputHeader& output : outputs) {
    writer.WriteLength(v1::NormalizeRequest::kOutputsFieldNumber, OutputBytes(output));
    writer.WriteText(v1::WantedOutput::kNameFieldNumber, output.name);
    WriteSharedPart(v1::WantedOutput::kSharedMemoryFieldNumber, output.shared_memory, writer);
  }
}

}  // namespace

absl::StatusOr<NormalizeRequestView> DecodeNormalizeRequest(absl::Span<const ConstBytes> slices) {
  MessageReader reader("request", slices);
  NormalizeRequestView request;
  absl::Status status = reader.ReadMessage([&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(v1::NormalizeRequest::kModelFieldNumber):
        return reader.ReadText("model", kMaxNameBytes, request.model);
      case VarintTag(v1::NormalizeRequest::kVersionFieldNumber):
        return reader.ReadInt("version", request.version);
      case DelimitedTag(v1::NormalizeRequest::kInputsFieldNumber):
        return ReadTensor(reader, "inputs", request.inputs);
      case VarintTag(v1::NormalizeRequest::kPriorityFieldNumber):
        return reader.ReadEnum("priority", request.priority);
      case VarintTag(v1::NormalizeRequest::kQueueTimeoutNsFieldNumber):
        return reader.ReadInt("queue_timeout_ns", request.queue_timeout_ns);
      case VarintTag(v1::NormalizeRequest::kPrecisionFieldNumber):
        return reader.ReadEnum("precision", request.precision);
      case DelimitedTag(v1::NormalizeRequest::kOutputsFieldNumber):
        return ReadOutput(reader, request);
      case VarintTag(v1::NormalizeRequest::kUnnamedOutputsFieldNumber):
        return reader.ReadBool("unnamed_outputs", request.unnamed_outputs);
      default: return reader.SkipUnknown(tag);
    }
  });
  if (!status.ok()) return status;
  if (request.inputs.empty()) {
    return absl::InvalidArgumentError("inputs: none, wanted at least one");
  }
  return request;
}

absl::StatusOr<EncodedMessage> EncodeNormalizeRequest(const NormalizeRequestHead& head) {
  constexpr std::size_t kMaxBytes = std::numeric_limits<std::int32_t>::max();
  std::size_t before = 0;
  for (const TensorHeader& input : head.inputs) {
    const auto bytes = static_cast<std::size_t>(input.data_bytes);
    if (bytes > kMaxBytes - before) {
      return absl::InvalidArgumentError(absl::StrCat("input: ", bytes, " bytes after ", before,
                                                     ", wanted at most ", kMaxBytes,
                                                     " in all, the most that one message carries"));
    }
    before += bytes;
  }
  const TensorsSize tensors = SizeOfTensors(head.inputs);
  const std::size_t fields = BytesFieldSize(head.model.size()) + IntFieldSize(head.version) +
                             IntFieldSize(head.priority) + IntFieldSize(head.queue_timeout_ns) +
                             IntFieldSize(head.precision) + OutputsSize(head.outputs);
  if (fields + tensors.total > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request: ", fields + tensors.total,
                                                   " bytes, wanted at most ", kMaxBytes,
                                                   ", the most that one message carries"));
  }
  EncodedMessage message;
  message.bytes.resize(fields + tensors.total - tensors.data_bytes);
  MessageWriter writer(message.bytes.data());
  writer.WriteText(v1::NormalizeRequest::kModelFieldNumber, head.model);
  writer.WriteInt(v1::NormalizeRequest::kVersionFieldNumber, head.version);
  writer.WriteInt(v1::NormalizeRequest::kPriorityFieldNumber, head.priority);
  writer.WriteInt(v1::NormalizeRequest::kQueueTimeoutNsFieldNumber, head.queue_timeout_ns);
  writer.WriteInt(v1::NormalizeRequest::kPrecisionFieldNumber, head.precision);
  WriteOutputs(head.outputs, writer);
  // This field comes out of order, which readers accept, so that data ends the message.
  WriteTensors(v1::NormalizeRequest::kInputsFieldNumber, head.inputs, message.bytes.data(), writer,
               message.ends);
  return message;
}

}  // namespace normd
