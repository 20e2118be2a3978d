#include "wire/infer_response.h"

#include <cstdint>
#include <utility>

#include "inference/grpc_service.pb.h"
#include "wire/infer_message.h"
#include "wire/message_reader.h"

namespace normd {

namespace {

using Response = inference::ModelInferResponse;

}  // namespace

absl::StatusOr<InferResponseView> DecodeInferResponse(absl::Span<const ConstBytes> slices) {
  MessageReader reader("response", slices);
  InferResponseView response;
  ReceivedRawList raw;
  absl::Status status = reader.ReadMessage([&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(Response::kModelNameFieldNumber):
        return reader.ReadText("model_name", kMaxNameBytes, response.model);
      case DelimitedTag(Response::kModelVersionFieldNumber):
        return reader.ReadText("model_version", kMaxNameBytes, response.version);
      case DelimitedTag(Response::kIdFieldNumber):
        return reader.ReadText("id", kMaxInferIdBytes, response.id);
      case DelimitedTag(Response::kParametersFieldNumber): {
        std::string key;
        ReceivedParameter value;
        return ReadParameter(reader, "parameters", key, value);
      }
      case DelimitedTag(Response::kOutputsFieldNumber):
        return ReadInferTensor(reader, "outputs", response.outputs);
      case DelimitedTag(Response::kRawOutputContentsFieldNumber):
        return ReadRawContents(reader, "raw_output_contents", raw);
      default: return reader.SkipUnknown(tag);
    }
  });
  if (!status.ok()) return status;
  status = TakeRawContents(RawContentsFor::kAll, "raw_output_contents", std::move(raw), "outputs",
                           response.outputs);
  if (!status.ok()) return status;
  return response;
}

}  // namespace normd
