#include "tests/support/fenced_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <map>
#include <new>

namespace normd::norm::testing {

namespace {

// Pages that are not in use, by their size in bytes. To map new ones and touch them first takes
// longer than most computations on them.
std::multimap<std::size_t, unsigned char*>& FreePages() {
  static std::multimap<std::size_t, unsigned char*> pages;
  return pages;
}

unsigned char* MapBetweenFences(std::size_t inside, std::size_t page) {
  void* const mapped =
      mmap(nullptr, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  unsigned char* const first = static_cast<unsigned char*>(mapped) + page;
  if (inside > 0 && mprotect(first, inside, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return first;
}

}  // namespace

FencedMemory::FencedMemory(std::size_t bytes, Fence fence) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  inside_ = bytes == 0 ? 0 : std::bit_ceil((bytes + page - 1) / page) * page;
  auto free = FreePages().extract(inside_);
  pages_ = free.empty() ? MapBetweenFences(inside_, page) : free.mapped();
  data_ = pages_ + (fence == Fence::kBehind ? inside_ - bytes : 0);
}

FencedMemory::~FencedMemory() { FreePages().emplace(inside_, pages_); }

void* FencedMirror::Copy(const void* original, std::size_t bytes) {
  if (original == nullptr) return nullptr;
  for (Run& run : runs_) {
    if (run.original == original && run.bytes == bytes) return run.memory.data();
  }
  unsigned char* const copy = runs_.emplace_back(original, bytes, fence_).memory.data();
  if (bytes > 0) std::memcpy(copy, original, bytes);
  return copy;
}

}  // namespace normd::norm::testing
