#include "tests/support/failing_allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace normd {
namespace {

constexpr int kAll = -1;
thread_local int allocations_left = kAll;

}  // namespace

FailingAllocations::FailingAllocations(int succeed) { allocations_left = succeed; }
FailingAllocations::~FailingAllocations() { allocations_left = kAll; }

}  // namespace normd

void* operator new(std::size_t size) {
  using normd::allocations_left;
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
