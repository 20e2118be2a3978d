#include "server/exec/device/pieces.h"

#include <algorithm>

namespace normd {
namespace {

class Cutter {
 public:
  Cutter(const CutRule& cut, std::int64_t target_bytes) : cut_(cut), target_bytes_(target_bytes) {}

  void Add(std::size_t request, const Geometry& geometry) {
    if (geometry.LargerBytes() == 0) return;
    const std::int64_t sample_bytes = geometry.LargerBytes() / geometry.samples;
    const bool large = sample_bytes > target_bytes_;
    if (!geometry.channels.all() || (large && cut_.at == CutRule::At::kRow)) {
      AddSamplesInParts(request, geometry, sample_bytes);
    } else {
      AddWholeSamples(request, geometry, sample_bytes);
    }
  }

  std::vector<Piece> Finish() {
    Close();
    return std::move(pieces_);
  }

 private:
  // Fills the open piece with samples, and opens the next when it is full.
  void AddWholeSamples(std::size_t request, const Geometry& geometry, std::int64_t sample_bytes) {
    for (std::int64_t first = 0; first < geometry.samples;) {
      const std::int64_t room = (target_bytes_ - open_.bytes) / sample_bytes;
      if (room < 1 && open_.bytes > 0) {
        Close();
        continue;
      }
      const std::int64_t samples = std::clamp<std::int64_t>(room, 1, geometry.samples - first);
      open_.segments.push_back({request, first, samples, geometry.samples, samples,
                                geometry.spatial, geometry.spatial_runs});
      open_.bytes += samples * sample_bytes;
      first += samples;
    }
  }

  void AddSamplesInParts(std::size_t request, const Geometry& geometry, std::int64_t sample_bytes) {
    Close();
    const std::int64_t sample_rows =
        geometry.channels.all() ? cut_.sample_rows : geometry.channels.count / cut_.row_channels;
    const std::int64_t row_bytes = sample_bytes / sample_rows;
    const std::int64_t rows_a_piece = std::max<std::int64_t>(target_bytes_ / row_bytes, 1);
    for (std::int64_t sample = 0; sample < geometry.samples; ++sample) {
      for (std::int64_t row = 0; row < sample_rows; row += rows_a_piece) {
        const std::int64_t rows = std::min(rows_a_piece, sample_rows - row);
        Piece piece;
        piece.channels.first = geometry.channels.first + row * cut_.row_channels;
        piece.channels.count = rows * cut_.row_channels;
        piece.bytes = rows * row_bytes;
        piece.segments.push_back({request,
                                  sample * sample_rows + row,
                                  rows,
                                  geometry.samples * sample_rows,
                                  1,
                                  geometry.spatial,
                                  {}});
        pieces_.push_back(std::move(piece));
      }
    }
  }

  void Close() {
    if (open_.bytes > 0) pieces_.push_back(std::move(open_));
    open_ = Piece();
  }

  const CutRule& cut_;
  const std::int64_t target_bytes_;
  Piece open_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Piece> CutIntoPieces(const CutRule& cut, absl::Span<const Geometry> requests,
                                 std::int64_t target_bytes) {
  Cutter cutter(cut, target_bytes);
  for (std::size_t i = 0; i < requests.size(); ++i) cutter.Add(i, requests[i]);
  return cutter.Finish();
}

}  // namespace normd
