#include "server/accept/piece_sequence.h"

#include <algorithm>

namespace normd {
namespace {

// Into how many units a sample may be cut.
std::int64_t SampleUnits(const norm::NormSpec& spec, const Geometry& tensors,
                         std::int64_t target_bytes) {
  const bool cut = spec.layout == norm::Layout::kChannelsFirst && tensors.samples > 0 &&
                   tensors.bytes / tensors.samples > target_bytes;
  return cut ? spec.groups : 1;
}

}  // namespace

PieceSequence::PieceSequence(const Geometry& tensors, std::int64_t sample_units,
                             std::int64_t target_bytes)
    : unit_(tensors) {
  if (tensors.samples == 0) return;
  sample_units_ = sample_units;
  units_ = tensors.samples * sample_units;
  unit_.samples = 1;
  unit_.rows /= units_;
  unit_.bytes /= units_;
  for (std::int64_t& bytes : unit_.input_bytes) bytes /= units_;
  piece_units_ = std::max<std::int64_t>(target_bytes / unit_.LargerBytes(), 1);
}

PieceSequence::PieceSequence(const Geometry& tensors, std::int64_t target_bytes)
    : PieceSequence(tensors, 1, target_bytes) {}

PieceSequence::PieceSequence(const norm::NormSpec& spec, const Geometry& tensors,
                             std::int64_t target_bytes)
    : PieceSequence(tensors, SampleUnits(spec, tensors, target_bytes), target_bytes) {
  unit_channels_ = spec.channels / sample_units_;
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
  piece.bytes *= units;
  for (std::int64_t& bytes : piece.input_bytes) bytes *= units;
  next_unit_ += units;
  return piece;
}

}  // namespace normd
