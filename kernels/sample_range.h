// Some of a segment's samples as a segment, and the gaps between them.

#ifndef NORMD_KERNELS_SAMPLE_RANGE_H_
#define NORMD_KERNELS_SAMPLE_RANGE_H_

#include <cstdint>

#include "kernels/norm.h"

namespace normd::norm {

// The gaps between a segment's samples, in elements: 0 if they lie together, or if there is one.
struct SampleGaps {
  std::int64_t x = 0;
  std::int64_t y = 0;

  bool any() const { return (x | y) != 0; }
  friend bool operator==(const SampleGaps& a, const SampleGaps& b) {
    return a.x == b.x && a.y == b.y;
  }
  friend bool operator!=(const SampleGaps& a, const SampleGaps& b) { return !(a == b); }
};
inline SampleGaps GapsOf(const NormSpec& spec, const Segment& segment) {
  const auto gap = [&](std::int64_t pitch) {
    return pitch == 0 || segment.samples < 2 ? 0 : pitch - spec.channels * segment.spatial;
  };
  return {gap(segment.x_pitch), gap(segment.y_pitch)};
}

// Samples [first, first + count) of a segment.
Segment SamplesOf(const NormSpec& spec, const Segment& segment, std::int64_t first,
                  std::int64_t count);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_SAMPLE_RANGE_H_
