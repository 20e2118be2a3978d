// Where elements lie with Layout::kMixedRuns, and the simpler layout when runs have one element.

#ifndef NORMD_KERNELS_MIXED_RUNS_H_
#define NORMD_KERNELS_MIXED_RUNS_H_

#include <cstdint>

#include "kernels/norm.h"

namespace normd::norm {

// The place of a sample's element is the sum of its channel's and its position's place, counted in
// elements from the sample's first.
struct MixedRuns {
  RunSizes channel_runs;
  RunSizes spatial_runs;

  std::int64_t OfChannel(std::int64_t channel) const;
  std::int64_t OfPosition(std::int64_t position) const;
  // The inverse.
  std::int64_t ChannelAt(std::int64_t place) const;
  std::int64_t PositionAt(std::int64_t place) const;
};

// Brings a segment's runs into their shortest form: drops runs of one element and joins adjacent
// ones. If at most one run of each kind is left, the layout becomes kChannelsFirst or
// kChannelsLast, without runs. The spec and the segment are valid, and the segment is not empty.
void ShortenRuns(NormSpec* spec, Segment* segment);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_MIXED_RUNS_H_
