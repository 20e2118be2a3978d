// A part of a segment's samples as a segment.

#ifndef NORMD_KERNELS_SAMPLE_RANGE_H_
#define NORMD_KERNELS_SAMPLE_RANGE_H_

#include <cstdint>

#include "kernels/norm.h"

namespace normd::norm {

// Samples [first, first + count) of a segment.
Segment SamplesOf(const NormSpec& spec, const Segment& segment, std::int64_t first,
                  std::int64_t count);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_SAMPLE_RANGE_H_
