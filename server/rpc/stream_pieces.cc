#include "server/rpc/stream_pieces.h"

#include <algorithm>
#include <utility>

namespace normd {
namespace {

// A reference to a slice costs a view and keeps what the transport allocated with it: from here on
// that is less than the bytes themselves.
constexpr std::size_t kSmallSliceBytes = 1024;
// What is copied is set aside in blocks of this size.
constexpr std::size_t kSmallBlockBytes = std::size_t{64} << 10;

}  // namespace

PieceSequence::PieceSequence(const norm::NormSpec& spec, const Geometry& tensor,
                             std::int64_t target_bytes)
    : tensor_(tensor) {
  if (tensor.samples == 0) return;
  const std::int64_t sample_bytes = tensor.bytes / tensor.samples;
  if (spec.layout == norm::Layout::kChannelsFirst && sample_bytes > target_bytes) {
    sample_units_ = spec.groups;
  }
  unit_bytes_ = sample_bytes / sample_units_;
  unit_rows_ = spec.groups / sample_units_;
  unit_channels_ = spec.channels / sample_units_;
  units_ = tensor.samples * sample_units_;
  piece_units_ = std::max<std::int64_t>(target_bytes / unit_bytes_, 1);
}

Geometry PieceSequence::Next() {
  std::int64_t units = std::min(piece_units_, units_ - next_unit_);
  Geometry piece = tensor_;
  if (sample_units_ == 1) {
    piece.samples = units;
  } else {
    const std::int64_t first = next_unit_ % sample_units_;
    units = std::min(units, sample_units_ - first);
    piece.samples = 1;
    piece.channels = {first * unit_channels_, units * unit_channels_};
  }
  piece.rows = units * unit_rows_;
  piece.bytes = units * unit_bytes_;
  piece.input_bytes = {piece.bytes};
  next_unit_ += units;
  return piece;
}

struct PieceAssembler::Memory {
  std::vector<grpc::Slice> slices;
  std::vector<std::unique_ptr<std::byte[]>> copies;
};

PieceAssembler::PieceAssembler(PieceSequence pieces) : pieces_(pieces) {
  if (!pieces_.done()) Begin();
}

void PieceAssembler::Begin() {
  geometry_ = pieces_.Next();
  lacking_bytes_ = geometry_.bytes;
  memory_ = std::make_shared<Memory>();
  views_.clear();
}

void PieceAssembler::Add(const grpc::Slice& slice, ConstBytes bytes,
                         std::vector<ReceivedPiece>& out) {
  received_bytes_ += static_cast<std::int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ConstBytes part = bytes.subspan(0, static_cast<std::size_t>(lacking_bytes_));
    Append(slice, part);
    bytes.remove_prefix(part.size());
    lacking_bytes_ -= static_cast<std::int64_t>(part.size());
    if (lacking_bytes_ > 0) continue;
    Flush();
    out.push_back({geometry_, std::move(views_), std::move(memory_)});
    if (!pieces_.done()) Begin();
  }
}

void PieceAssembler::Append(const grpc::Slice& slice, ConstBytes bytes) {
  if (bytes.size() < kSmallSliceBytes) {
    small_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (small_.size() >= kSmallBlockBytes) Flush();
    return;
  }
  Flush();
  // Not among the tiny slices that hold their bytes within themselves, so the view stays valid when
  // the reference moves.
  memory_->slices.push_back(slice);
  views_.push_back(bytes);
}

void PieceAssembler::Flush() {
  if (small_.empty()) return;
  memory_->copies.push_back(std::make_unique<std::byte[]>(small_.size()));
  std::byte* copy = memory_->copies.back().get();
  std::copy_n(reinterpret_cast<const std::byte*>(small_.data()), small_.size(), copy);
  views_.emplace_back(copy, small_.size());
  small_.clear();
}

}  // namespace normd
