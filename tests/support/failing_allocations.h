// Allocations that fail on a test's request. Replaces operator new in the whole test program.

#ifndef NORMD_TESTS_SUPPORT_FAILING_ALLOCATIONS_H_
#define NORMD_TESTS_SUPPORT_FAILING_ALLOCATIONS_H_

namespace normd {

// While it lives, this thread's allocations throw std::bad_alloc after the next `succeed` of them:
// `fail` of them, or all. One at a time for each thread.
class FailingAllocations {
 public:
  explicit FailingAllocations(int succeed, int fail = -1);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;
};

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_FAILING_ALLOCATIONS_H_
