#include "server/accept/stream_plan.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

namespace normd {

PieceSequence::PieceSequence(const CutRule& cut, const Geometry& tensors, std::int64_t target_bytes)
    : unit_(tensors) {
  if (tensors.samples == 0) return;
  const bool between_rows =
      cut.at == CutRule::At::kRow && tensors.LargerBytes() / tensors.samples > target_bytes;
  if (between_rows) sample_units_ = cut.sample_rows;
  unit_channels_ = cut.row_channels;
  units_ = tensors.samples * sample_units_;
  unit_.samples = 1;
  unit_.rows /= units_;
  for (TensorSize& input : unit_.inputs) input.bytes /= units_;
  for (TensorSize& output : unit_.outputs) output.bytes /= units_;
  piece_units_ = std::max<std::int64_t>(target_bytes / unit_.LargerBytes(), 1);
}

Geometry PieceSequence::Next() {
  std::int64_t units = std::min(piece_units_, units_ - next_unit_);
  Geometry piece = unit_;
  if (sample_units_ == 1) {
    piece.samples = units;
  } else {
    const std::int64_t first = next_unit_ % sample_units_;
    units = std::min(units, sample_units_ - first);
    piece.channels = {first * unit_channels_, units * unit_channels_};
  }
  piece.rows *= units;
  for (TensorSize& input : piece.inputs) input.bytes *= units;
  for (TensorSize& output : piece.outputs) output.bytes *= units;
  next_unit_ += units;
  return piece;
}

namespace {

// Sizes from outside reach 2^63, and products of them exceed it.
using Wide = absl::uint128;
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

Wide DividedUp(Wide value, Wide by) { return (value + by - 1) / by; }

bool OutputIsLarger(const Geometry& geometry) {
  return geometry.InputBytes() > 0 && geometry.OutputBytes() > geometry.InputBytes();
}

// If so, the stream carries a sample of each in turn.
bool HasSeveralOutputs(const Geometry& geometry) {
  return std::count_if(geometry.outputs.begin(), geometry.outputs.end(),
                       [](const TensorSize& output) { return output.bytes > 0; }) > 1;
}

// Limits the window's results to a window too.
StreamLimits Narrow(StreamLimits limits, const Geometry& geometry) {
  if (OutputIsLarger(geometry)) {
    limits.window_bytes = static_cast<std::int64_t>(Wide(limits.window_bytes) *
                                                    geometry.InputBytes() / geometry.OutputBytes());
  }
  return limits;
}

// The server's window for a piece of `unit` bytes of such tensors beside the largest chunk.
Wide WindowFor(std::int64_t unit, const Geometry& geometry, const StreamLimits& server) {
  const Wide bytes = unit;
  const Wide window = bytes + std::min(DividedUp(bytes, 3), Wide(server.max_message_bytes));
  if (!OutputIsLarger(geometry)) return window;
  return DividedUp(window * geometry.OutputBytes(), geometry.InputBytes());
}

}  // namespace

absl::StatusOr<StreamPlan> PlanStream(const Model& model, const CheckedInputs& inputs,
                                      const StreamLimits& server) {
  const StreamLimits limits = Narrow(server, inputs.geometry);
  const CutRule cut = HasSeveralOutputs(inputs.geometry) ? CutRule() : model.cut();
  const PieceSequence pieces(cut, inputs.geometry,
                             std::min(limits.piece_bytes, limits.max_piece_bytes()));
  const std::int64_t unit = pieces.unit_bytes();
  if (unit <= limits.max_piece_bytes()) return StreamPlan{limits, pieces};
  const Wide needed = WindowFor(unit, inputs.geometry, server);
  return absl::InvalidArgumentError(absl::StrCat(
      "shape: a ", cut.at == CutRule::At::kRow ? "row" : "sample", " of ",
      inputs.types.front().shape.ToString(), " has ", unit, " bytes and needs a stream window of ",
      needed > Wide(kLargest) ? "more than " : "",
      static_cast<std::int64_t>(std::min(needed, Wide(kLargest))), ", the server's is ",
      server.window_bytes, " (--stream_window_bytes)"));
}

std::int64_t HeldBytes(const Geometry& geometry, std::int64_t input_bytes) {
  if (input_bytes == 0) return 0;
  return static_cast<std::int64_t>(
      input_bytes +
      DividedUp(Wide(input_bytes) * (Wide(geometry.OutputBytes()) + geometry.workspace_bytes),
                geometry.InputBytes()));
}

}  // namespace normd
