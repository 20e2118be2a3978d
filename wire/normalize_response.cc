#include "wire/normalize_response.h"

#include "wire/message_reader.h"
#include "wire/message_writer.h"

namespace normd {

EncodedMessage EncodeNormalizeResponse(const NormalizeResponseHead& head) {
  std::size_t stages = 0;
  for (const std::int64_t ns : head.stage_ns) stages += IntFieldSize(ns);
  const std::size_t batch = IntFieldSize(head.batch_id) + IntFieldSize(head.batch_requests) +
                            IntFieldSize(head.batch_bytes) + BytesFieldSize(head.lane.size());
  const std::size_t fields = BytesFieldSize(head.model.size()) + IntFieldSize(head.version) +
                             SubmessageSize(stages) + SubmessageSize(batch);
  const TensorsSize tensors = SizeOfTensors(head.outputs);

  EncodedMessage message;
  message.bytes.resize(fields + tensors.total - tensors.data_bytes);
  MessageWriter writer(message.bytes.data());
  writer.WriteText(v1::NormalizeResponse::kModelFieldNumber, head.model);
  writer.WriteInt(v1::NormalizeResponse::kVersionFieldNumber, head.version);
  writer.WriteLength(v1::NormalizeResponse::kStagesFieldNumber, stages);
  for (std::size_t i = 0; i < head.stage_ns.size(); ++i) {
    writer.WriteInt(static_cast<int>(i) + v1::StageTimes::kDecodeNsFieldNumber, head.stage_ns[i]);
  }
  writer.WriteLength(v1::NormalizeResponse::kBatchFieldNumber, batch);
  writer.WriteInt(v1::BatchInfo::kIdFieldNumber, head.batch_id);
  writer.WriteInt(v1::BatchInfo::kRequestsFieldNumber, head.batch_requests);
  writer.WriteInt(v1::BatchInfo::kBytesFieldNumber, head.batch_bytes);
  writer.WriteText(v1::BatchInfo::kLaneFieldNumber, head.lane);
  WriteTensors(v1::NormalizeResponse::kOutputsFieldNumber, head.outputs, message.bytes.data(),
               writer, message.ends);
  return message;
}

absl::StatusOr<NormalizeResponseView> DecodeNormalizeResponse(absl::Span<const ConstBytes> slices) {
  MessageReader reader("response", slices);
  NormalizeResponseView response;
  absl::Status status = reader.ReadMessage([&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(v1::NormalizeResponse::kModelFieldNumber):
        return reader.ReadText("model", kMaxNameBytes, response.model);
      case VarintTag(v1::NormalizeResponse::kVersionFieldNumber):
        return reader.ReadInt("version", response.version);
      case DelimitedTag(v1::NormalizeResponse::kStagesFieldNumber):
        return reader.MergeInto("stages", response.stages);
      case DelimitedTag(v1::NormalizeResponse::kBatchFieldNumber):
        return reader.MergeInto("batch", response.batch);
      case DelimitedTag(v1::NormalizeResponse::kOutputsFieldNumber):
        return ReadTensor(reader, "outputs", response.outputs);
      default: return reader.SkipUnknown(tag);
    }
  });
  if (!status.ok()) return status;
  return response;
}

}  // namespace normd
