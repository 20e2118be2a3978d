// The sizes of one kind of dimension (channels or positions) where the two kinds take turns.
//
// This header is C++17 and needs no library: host code and .cu files share it.

#ifndef NORMD_KERNELS_RUN_SIZES_H_
#define NORMD_KERNELS_RUN_SIZES_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace normd::norm {

inline constexpr std::size_t kMostRuns = 4;
using RunSizes = std::array<std::int64_t, kMostRuns>;

}  // namespace normd::norm

#endif  // NORMD_KERNELS_RUN_SIZES_H_
