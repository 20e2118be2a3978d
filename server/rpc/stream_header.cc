#include "server/rpc/stream_header.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "normd/v1/norm_service.pb.h"
#include "server/rpc/inputs.h"

namespace normd {
namespace {

std::int64_t TargetBytes(const StreamLimits& limits) {
  return std::min(limits.piece_bytes, limits.max_piece_bytes());
}

// The smallest window whose three quarters hold `bytes`.
std::int64_t WindowFor(std::int64_t bytes) { return bytes + (bytes + 2) / 3; }

}  // namespace

std::int64_t StreamHeader::BudgetBytes() const {
  return 2 * std::min(limits.window_bytes, geometry.bytes);
}

PieceSequence StreamHeader::Pieces() const {
  return PieceSequence(model->Spec(dtype), geometry, TargetBytes(limits));
}

absl::StatusOr<StreamHeader> CheckStreamHeader(const NormalizeRequestView& view,
                                               const ModelRegistry& registry,
                                               const StreamLimits& limits) {
  absl::Status status = CheckModelName(view.model);
  if (!status.ok()) return status;
  auto model = registry.Find(view.model, view.version);
  if (!model.ok()) return model.status();
  if ((*model)->linear() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: ", view.model, " has a matrix product, a stream takes a norm"));
  }
  const absl::StatusOr<norm::Precision> precision = CheckPrecision(**model, view.precision);
  if (!precision.ok()) return precision.status();
  auto inputs = CheckInputTypes(**model, view.inputs);
  if (!inputs.ok()) return inputs.status();
  if (const std::int64_t bytes = view.inputs[0].data_bytes; bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", bytes, " bytes in the header, wanted them in chunks"));
  }
  const absl::StatusOr<Queueing> queueing = CheckQueueing(view);
  if (!queueing.ok()) return queueing.status();
  StreamHeader header{*std::move(model), inputs->dtype, std::move(inputs->output_shape),
                      inputs->geometry,  *queueing,     limits};
  const std::int64_t unit = header.Pieces().unit_bytes();
  if (unit > limits.max_piece_bytes()) {
    const norm::NormSpec spec = header.model->Spec(header.dtype);
    const bool rows = spec.layout == norm::Layout::kChannelsFirst;
    return absl::InvalidArgumentError(
        absl::StrCat("shape: a ", rows ? "row" : "sample", " of ", header.shape.ToString(), " has ",
                     unit, " bytes and needs a stream window of ", WindowFor(unit),
                     ", the server's is ", limits.window_bytes, " (--stream_window_bytes)"));
  }
  return header;
}

std::string EncodeStreamHeader(const StreamHeader& header) {
  v1::NormalizeStreamResponse response;
  v1::NormalizeStreamHeader& out = *response.mutable_header();
  out.set_model(header.model->name());
  out.set_version(header.model->version());
  v1::Tensor& output = *out.add_outputs();
  output.set_dtype(ToProto(header.dtype));
  for (const std::int64_t dim : header.shape.dims()) output.add_shape(dim);
  out.set_window_bytes(header.limits.window_bytes);
  out.set_max_chunk_bytes(header.limits.max_chunk_bytes());
  return response.SerializeAsString();
}

}  // namespace normd
