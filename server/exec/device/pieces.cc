#include "server/exec/device/pieces.h"

#include <algorithm>

namespace normd {
namespace {

class Cutter {
 public:
  Cutter(const norm::NormSpec& spec, std::int64_t target_bytes)
      : spec_(spec), target_bytes_(target_bytes) {}

  void Add(std::size_t request, const Geometry& geometry) {
    if (geometry.bytes == 0) return;
    const std::int64_t sample_bytes = geometry.bytes / geometry.samples;
    const bool large = sample_bytes > target_bytes_;
    if (!geometry.channels.all() || (large && spec_.layout == norm::Layout::kChannelsFirst)) {
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
      open_.segments.push_back(
          {request, first * sample_bytes, samples * sample_bytes, samples, geometry.spatial});
      open_.bytes += samples * sample_bytes;
      first += samples;
    }
  }

  void AddSamplesInParts(std::size_t request, const Geometry& geometry, std::int64_t sample_bytes) {
    Close();
    const std::int64_t sample_groups = SpecOf(spec_, geometry.channels).groups;
    const std::int64_t row_bytes = sample_bytes / sample_groups;
    const std::int64_t rows_a_piece = std::max<std::int64_t>(target_bytes_ / row_bytes, 1);
    const std::int64_t group_channels = spec_.channels / spec_.groups;
    for (std::int64_t sample = 0; sample < geometry.samples; ++sample) {
      for (std::int64_t group = 0; group < sample_groups; group += rows_a_piece) {
        const std::int64_t groups = std::min(rows_a_piece, sample_groups - group);
        Piece piece;
        piece.channels.first = geometry.channels.first + group * group_channels;
        piece.channels.count = groups * group_channels;
        piece.bytes = groups * row_bytes;
        piece.segments.push_back(
            {request, sample * sample_bytes + group * row_bytes, piece.bytes, 1, geometry.spatial});
        pieces_.push_back(std::move(piece));
      }
    }
  }

  void Close() {
    if (open_.bytes > 0) pieces_.push_back(std::move(open_));
    open_ = Piece();
  }

  const norm::NormSpec& spec_;
  const std::int64_t target_bytes_;
  Piece open_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Piece> CutIntoPieces(const norm::NormSpec& spec, absl::Span<const Geometry> requests,
                                 std::int64_t target_bytes) {
  Cutter cutter(spec, target_bytes);
  for (std::size_t i = 0; i < requests.size(); ++i) cutter.Add(i, requests[i]);
  return cutter.Finish();
}

}  // namespace normd
