#include "base/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace normd {

std::byte* MapPages(std::size_t bytes) {
  const bool huge = bytes >= 2 * kHugePageBytes;
  const std::size_t mapped = huge ? bytes + kHugePageBytes : bytes;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  if (!huge) return static_cast<std::byte*>(base);
  const std::size_t lead = -reinterpret_cast<std::uintptr_t>(base) % kHugePageBytes;
  std::byte* data = static_cast<std::byte*>(base) + lead;
  if (lead > 0) munmap(base, lead);
  munmap(data + bytes, kHugePageBytes - lead);
  // One fault for 2 MiB instead of 512. The call fails harmlessly where there are no huge pages.
  madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

void UnmapPages(std::byte* data, std::size_t bytes) { munmap(data, bytes); }

}  // namespace normd
