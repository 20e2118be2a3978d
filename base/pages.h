// Memory straight from the system, in huge pages where there are any: large blocks then need few
// TLB entries.

#ifndef NORMD_BASE_PAGES_H_
#define NORMD_BASE_PAGES_H_

#include <cstddef>

namespace normd {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Zeroed memory, a multiple of 4 KiB, committed on first write and, from 4 MiB on, aligned to a
// huge page. Null when the system has no such block.
std::byte* MapPages(std::size_t bytes);
// Unmaps what MapPages returned for the same `bytes`.
void UnmapPages(std::byte* data, std::size_t bytes);

}  // namespace normd

#endif  // NORMD_BASE_PAGES_H_
