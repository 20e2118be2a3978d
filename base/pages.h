// Memory straight from the system, in huge pages where it has them: what is large is then found
// with few entries of the processor's tables of addresses.

#ifndef NORMD_BASE_PAGES_H_
#define NORMD_BASE_PAGES_H_

#include <cstddef>

namespace normd {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Zeroed memory, a multiple of 4 KiB, committed on first write; aligned to a huge page from 4 MiB
// on. Null when the system has no such block.
std::byte* MapPages(std::size_t bytes);
// What MapPages gave, with the same `bytes`.
void UnmapPages(std::byte* data, std::size_t bytes);

}  // namespace normd

#endif  // NORMD_BASE_PAGES_H_
