// Where elements lie with Layout::kInterleaved, and what remains of it when runs have one element.

#ifndef NORMD_KERNELS_INTERLEAVED_H_
#define NORMD_KERNELS_INTERLEAVED_H_

#include <cstdint>

#include "kernels/norm.h"

namespace normd::norm {

// An element of a sample: its channel's place plus its position's is its own, counted in elements
// from the sample's first.
struct InterleavedPlaces {
  RunSizes channel_runs;
  RunSizes spatial_runs;

  std::int64_t OfChannel(std::int64_t channel) const;
  std::int64_t OfPosition(std::int64_t position) const;
  // The inverse.
  std::int64_t ChannelAt(std::int64_t place) const;
  std::int64_t PositionAt(std::int64_t place) const;
};

// Brings a segment's runs into their shortest form: runs of one element go, and what is adjacent
// then becomes one run. Where that leaves at most one run of each kind, the layout becomes
// kChannelsFirst or kChannelsLast, without runs. The spec and the segment are valid, and the
// segment is not empty.
void ShortenRuns(NormSpec* spec, Segment* segment);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_INTERLEAVED_H_
