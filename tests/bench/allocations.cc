#include "tests/bench/allocations.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

// The C library's own, under the names by which it lets itself be replaced.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace normd {
namespace {

// A thread counts in a line of its own, so that counting does not slow down what is measured.
struct alignas(64) Line {
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> bytes{0};
};
constinit std::array<Line, 128> lines;
constinit std::atomic<std::size_t> next_line{0};
constinit thread_local Line* this_threads_line = nullptr;

[[maybe_unused]] void Count(std::size_t bytes) {
  if (this_threads_line == nullptr) this_threads_line = &lines[next_line++ % lines.size()];
  this_threads_line->count.fetch_add(1, std::memory_order_relaxed);
  this_threads_line->bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

}  // namespace

Allocations CountAllocations() {
  Allocations sum;
  for (const Line& line : lines) {
    sum.count += line.count.load(std::memory_order_relaxed);
    sum.bytes += line.bytes.load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace normd

#ifndef NORMD_SANITIZED
// Visible to the shared libraries, which then call these too.
#pragma GCC visibility push(default)
extern "C" {

void* malloc(std::size_t size) {
  normd::Count(size);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  normd::Count(count * size);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  normd::Count(size);
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  normd::Count(size);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  *memory = memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"
#pragma GCC visibility pop
#endif
