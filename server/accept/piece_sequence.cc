#include "server/accept/piece_sequence.h"

#include <algorithm>

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

}  // namespace normd
