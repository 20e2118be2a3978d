#include "tests/support/failing_allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace normd {
namespace {

constexpr int kAll = -1;
thread_local int allocations_left = kAll;
thread_local int failures_left = kAll;

void* Allocate(std::size_t size) noexcept {
  if (allocations_left == 0 && failures_left != 0) {
    if (failures_left > 0) --failures_left;
    return nullptr;
  }
  if (allocations_left > 0) --allocations_left;
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

FailingAllocations::FailingAllocations(int succeed, int fail) {
  allocations_left = succeed;
  failures_left = fail;
}
FailingAllocations::~FailingAllocations() { allocations_left = kAll; }

}  // namespace normd

// All forms whose memory may reach the deletes below: a sanitizer's own forms would not match them.
void* operator new(std::size_t size) {
  if (void* const memory = normd::Allocate(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return normd::Allocate(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }
