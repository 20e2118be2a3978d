#include "server/rpc/stream_header.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "normd/v1/norm_service.pb.h"

namespace normd {
namespace {

// Sizes from outside reach to 2^63, and what is made of them here beyond it.
using Wide = absl::uint128;
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

Wide DividedUp(Wide value, Wide by) { return (value + by - 1) / by; }

bool OutputIsLarger(const Geometry& geometry) {
  return geometry.InputBytes() > 0 && geometry.bytes > geometry.InputBytes();
}

// So that what is made of the window's bytes is no more than a window either.
StreamLimits Narrow(StreamLimits limits, const Geometry& geometry) {
  if (OutputIsLarger(geometry)) {
    limits.window_bytes = static_cast<std::int64_t>(Wide(limits.window_bytes) *
                                                    geometry.InputBytes() / geometry.bytes);
  }
  return limits;
}

// The server's window that holds a piece of `unit` bytes of such tensors beside the largest chunk.
Wide WindowFor(std::int64_t unit, const Geometry& geometry, const StreamLimits& server) {
  const Wide bytes = unit;
  const Wide window = bytes + std::min(DividedUp(bytes, 3), Wide(server.max_message_bytes));
  if (!OutputIsLarger(geometry)) return window;
  return DividedUp(window * geometry.bytes, geometry.InputBytes());
}

absl::Status CheckNoData(absl::Span<const ReceivedTensor> tensors) {
  for (const ReceivedTensor& tensor : tensors) {
    if (tensor.data_bytes == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", tensor.data_bytes, " bytes in the header, wanted them in chunks"));
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const StreamHeader& header, const StreamLimits& server) {
  const std::int64_t unit = header.Pieces().unit_bytes();
  if (unit <= header.limits.max_piece_bytes()) return absl::OkStatus();
  const Wide needed = WindowFor(unit, header.geometry(), server);
  const Model& model = *header.model;
  const bool rows = model.linear() == nullptr &&
                    model.Spec(header.inputs.dtype).layout == norm::Layout::kChannelsFirst;
  return absl::InvalidArgumentError(absl::StrCat(
      "shape: a ", rows ? "row" : "sample", " of ", header.inputs.types.front().shape.ToString(),
      " has ", unit, " bytes and needs a stream window of ",
      needed > Wide(kLargest) ? "more than " : "",
      static_cast<std::int64_t>(std::min(needed, Wide(kLargest))), ", the server's is ",
      server.window_bytes, " (--stream_window_bytes)"));
}

}  // namespace

std::int64_t StreamHeader::HeldBytes(std::int64_t input_bytes) const {
  if (input_bytes == 0) return 0;
  return static_cast<std::int64_t>(
      input_bytes + DividedUp(Wide(input_bytes) * geometry().bytes, geometry().InputBytes()));
}

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
  const StreamLimits narrow = Narrow(limits, inputs->geometry);
  StreamHeader header{*std::move(model), *precision, *std::move(inputs), *queueing, narrow};
  if (status = CheckWindow(header, limits); !status.ok()) return status;
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
