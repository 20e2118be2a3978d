#include "server/rpc/stream_header.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "normd/v1/norm_service.pb.h"

namespace normd {
namespace {

// The smallest window whose three quarters hold `bytes`.
std::int64_t WindowFor(std::int64_t bytes) { return bytes + (bytes + 2) / 3; }

// By how much the output is larger than the inputs; 1 where it is not.
double GrowthOf(const Geometry& geometry) {
  const std::int64_t input_bytes = geometry.InputBytes();
  return input_bytes >= geometry.bytes
             ? 1
             : static_cast<double>(geometry.bytes) / static_cast<double>(input_bytes);
}

// So that what is made of the window's bytes is no more than a window either.
StreamLimits Narrow(StreamLimits limits, double growth) {
  if (growth > 1) {
    limits.window_bytes =
        static_cast<std::int64_t>(static_cast<double>(limits.window_bytes) / growth);
  }
  return limits;
}

absl::Status CheckNoData(absl::Span<const TensorView> tensors) {
  for (const TensorView& tensor : tensors) {
    if (tensor.data_bytes == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", tensor.data_bytes, " bytes in the header, wanted them in chunks"));
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const StreamHeader& header, double growth, const StreamLimits& server) {
  const std::int64_t unit = header.Pieces().unit_bytes();
  if (unit <= header.limits.max_piece_bytes()) return absl::OkStatus();
  std::int64_t needed = WindowFor(unit);
  if (growth > 1) {
    needed = static_cast<std::int64_t>(std::ceil(static_cast<double>(needed + 1) * growth));
  }
  const Model& model = *header.model;
  const bool rows = model.linear() == nullptr &&
                    model.Spec(header.inputs.dtype).layout == norm::Layout::kChannelsFirst;
  return absl::InvalidArgumentError(absl::StrCat(
      "shape: a ", rows ? "row" : "sample", " of ", header.inputs.types.front().shape.ToString(),
      " has ", unit, " bytes and needs a stream window of ", needed, ", the server's is ",
      server.window_bytes, " (--stream_window_bytes)"));
}

}  // namespace

std::string StreamHeader::WantedData() const {
  std::string wanted = absl::StrCat(input_bytes(), " for shape ");
  for (std::size_t i = 0; i < inputs.types.size(); ++i) {
    absl::StrAppend(&wanted, i == 0 ? "" : " and ", inputs.types[i].shape.ToString());
  }
  return absl::StrCat(wanted, " of ", norm::Name(inputs.dtype));
}

PieceSequence StreamHeader::Pieces() const {
  const std::int64_t target = std::min(limits.piece_bytes, limits.max_piece_bytes());
  if (model->linear() != nullptr) return PieceSequence(geometry(), target);
  return PieceSequence(model->Spec(inputs.dtype), geometry(), target);
}

absl::StatusOr<StreamHeader> CheckStreamHeader(const NormalizeRequestView& view,
                                               const ModelRegistry& registry,
                                               const StreamLimits& limits) {
  absl::Status status = CheckModelName(view.model);
  if (!status.ok()) return status;
  auto model = registry.Find(view.model, view.version);
  if (!model.ok()) return model.status();
  const absl::StatusOr<norm::Precision> precision = CheckPrecision(**model, view.precision);
  if (!precision.ok()) return precision.status();
  auto inputs = CheckInputTypes(**model, view.inputs);
  if (!inputs.ok()) return inputs.status();
  if (status = CheckNoData(view.inputs); !status.ok()) return status;
  const absl::StatusOr<Queueing> queueing = CheckQueueing(view);
  if (!queueing.ok()) return queueing.status();
  const double growth = GrowthOf(inputs->geometry);
  const std::int64_t budget_bytes = std::min(limits.window_bytes, inputs->geometry.InputBytes()) +
                                    std::min(limits.window_bytes, inputs->geometry.bytes);
  StreamHeader header{*std::move(model),      *precision,  *std::move(inputs), *queueing,
                      Narrow(limits, growth), budget_bytes};
  if (status = CheckWindow(header, growth, limits); !status.ok()) return status;
  return header;
}

std::string EncodeStreamHeader(const StreamHeader& header) {
  v1::NormalizeStreamResponse response;
  v1::NormalizeStreamHeader& out = *response.mutable_header();
  out.set_model(header.model->name());
  out.set_version(header.model->version());
  v1::Tensor& output = *out.add_outputs();
  output.set_dtype(ToProto(header.inputs.dtype));
  for (const std::int64_t dim : header.inputs.output_shape.dims()) output.add_shape(dim);
  out.set_window_bytes(header.limits.window_bytes);
  out.set_max_chunk_bytes(header.limits.max_chunk_bytes());
  return response.SerializeAsString();
}

}  // namespace normd
