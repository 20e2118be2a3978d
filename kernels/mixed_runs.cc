#include "kernels/mixed_runs.h"

#include <cstddef>
#include <utility>

namespace normd::norm {
namespace {

// Calls visit(size, kind, stride) for each run of a sample, the innermost first. Runs of one
// element are left out: they move nothing.
enum class Kind : std::uint8_t { kChannels, kPositions };

template <typename Visit>
void ForRuns(const MixedRuns& places, const Visit& visit) {
  std::int64_t stride = 1;
  for (std::size_t i = kMostRuns; i-- > 0;) {
    for (const auto& [size, kind] : {std::pair(places.spatial_runs[i], Kind::kPositions),
                                     std::pair(places.channel_runs[i], Kind::kChannels)}) {
      if (size == 1) continue;
      visit(size, kind, stride);
      stride *= size;
    }
  }
}

std::int64_t PlaceOf(const MixedRuns& places, Kind wanted, std::int64_t index) {
  std::int64_t place = 0;
  ForRuns(places, [&](std::int64_t size, Kind kind, std::int64_t stride) {
    if (kind != wanted) return;
    place += index % size * stride;
    index /= size;
  });
  return place;
}

std::int64_t IndexAt(const MixedRuns& places, Kind wanted, std::int64_t place) {
  std::int64_t index = 0;
  std::int64_t step = 1;
  ForRuns(places, [&](std::int64_t size, Kind kind, std::int64_t) {
    if (kind == wanted) {
      index += place % size * step;
      step *= size;
    }
    place /= size;
  });
  return index;
}

}  // namespace

std::int64_t MixedRuns::OfChannel(std::int64_t channel) const {
  return PlaceOf(*this, Kind::kChannels, channel);
}
std::int64_t MixedRuns::OfPosition(std::int64_t position) const {
  return PlaceOf(*this, Kind::kPositions, position);
}
std::int64_t MixedRuns::ChannelAt(std::int64_t place) const {
  return IndexAt(*this, Kind::kChannels, place);
}
std::int64_t MixedRuns::PositionAt(std::int64_t place) const {
  return IndexAt(*this, Kind::kPositions, place);
}

void ShortenRuns(NormSpec* spec, Segment* segment) {
  // Pairs take up runs from the innermost on, the last pair first. A pair that has channels takes
  // no more positions.
  MixedRuns shorter;
  shorter.channel_runs.fill(1);
  shorter.spatial_runs.fill(1);
  std::size_t at = kMostRuns - 1;
  ForRuns({spec->channel_runs, segment->spatial_runs},
          [&](std::int64_t size, Kind kind, std::int64_t) {
            if (kind == Kind::kPositions && shorter.channel_runs[at] > 1) --at;
            (kind == Kind::kChannels ? shorter.channel_runs : shorter.spatial_runs)[at] *= size;
          });
  constexpr std::size_t kLast = kMostRuns - 1;
  const bool first = at == kLast;
  const bool last =
      at + 1 == kLast && shorter.spatial_runs[kLast] == 1 && shorter.channel_runs[at] == 1;
  spec->channel_runs = first || last ? RunSizes{} : shorter.channel_runs;
  segment->spatial_runs = first || last ? RunSizes{} : shorter.spatial_runs;
  if (first) spec->layout = Layout::kChannelsFirst;
  if (last) spec->layout = Layout::kChannelsLast;
}

}  // namespace normd::norm
