#include "tests/support/fenced_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

namespace normd::norm::testing {

FencedMemory::FencedMemory(std::size_t bytes, Fence fence) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t inside = (bytes + page - 1) / page * page;
  mapped_ = inside + 2 * page;
  void* const pages = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  pages_ = static_cast<unsigned char*>(pages);
  if (inside > 0 && mprotect(pages_ + page, inside, PROT_READ | PROT_WRITE) != 0) {
    throw std::bad_alloc();
  }
  data_ = pages_ + page + (fence == Fence::kBehind ? inside - bytes : 0);
}

FencedMemory::~FencedMemory() { munmap(pages_, mapped_); }

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
