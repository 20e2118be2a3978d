// The styles that samples name or bring.

#ifndef NORMD_KERNELS_CPU_STYLES_H_
#define NORMD_KERNELS_CPU_STYLES_H_

#include <cstddef>

#include "kernels/norm.h"

namespace normd::norm::cpu {

// InvalidArgument if a sample names a style that is not in the table.
Status CheckStyleIndexes(const NormSpec& spec, const Segment* segments, std::size_t count);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STYLES_H_
