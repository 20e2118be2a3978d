#include "wire/normalize_request.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "wire/message_reader.h"
#include "wire/message_writer.h"

namespace normd {

using Request = v1::NormalizeRequest;

absl::StatusOr<NormalizeRequestView> DecodeNormalizeRequest(absl::Span<const ConstBytes> slices) {
  MessageReader reader("request", slices);
  NormalizeRequestView request;
  absl::Status status = reader.ReadMessage([&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(Request::kModelFieldNumber):
        return reader.ReadText("model", kMaxNameBytes, request.model);
      case VarintTag(Request::kVersionFieldNumber):
        return reader.ReadInt("version", request.version);
      case DelimitedTag(Request::kInputsFieldNumber):
        return ReadTensor(reader, "inputs", request.inputs);
      case VarintTag(Request::kPriorityFieldNumber):
        return reader.ReadEnum("priority", request.priority);
      case VarintTag(Request::kQueueTimeoutNsFieldNumber):
        return reader.ReadInt("queue_timeout_ns", request.queue_timeout_ns);
      case VarintTag(Request::kPrecisionFieldNumber):
        return reader.ReadEnum("precision", request.precision);
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
  constexpr std::size_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max();
  std::size_t before = 0;
  for (const TensorHeader& input : head.inputs) {
    const auto bytes = static_cast<std::size_t>(input.data_bytes);
    if (bytes > kMaxMessageBytes - before) {
      return absl::InvalidArgumentError(absl::StrCat("input: ", bytes, " bytes after ", before,
                                                     ", wanted at most ", kMaxMessageBytes,
                                                     " in all, which is what one message carries"));
    }
    before += bytes;
  }
  const TensorsSize tensors = SizeOfTensors(head.inputs);
  const std::size_t fields = BytesFieldSize(head.model.size()) + IntFieldSize(head.version) +
                             IntFieldSize(head.priority) + IntFieldSize(head.queue_timeout_ns) +
                             IntFieldSize(head.precision);
  if (fields + tensors.total > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request: ", fields + tensors.total,
                                                   " bytes, wanted at most ", kMaxMessageBytes,
                                                   ", which is what one message carries"));
  }
  EncodedMessage message;
  message.bytes.resize(fields + tensors.total - tensors.data_bytes);
  MessageWriter writer(message.bytes.data());
  writer.WriteText(Request::kModelFieldNumber, head.model);
  writer.WriteInt(Request::kVersionFieldNumber, head.version);
  writer.WriteInt(Request::kPriorityFieldNumber, head.priority);
  writer.WriteInt(Request::kQueueTimeoutNsFieldNumber, head.queue_timeout_ns);
  writer.WriteInt(Request::kPrecisionFieldNumber, head.precision);
  // Out of their number's order, which readers do not mind, so that data ends the message.
  WriteTensors(Request::kInputsFieldNumber, head.inputs, message.bytes.data(), writer,
               message.ends);
  return message;
}

}  // namespace normd
