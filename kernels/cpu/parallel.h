// The parallel loop of one batch.

#ifndef NORMD_KERNELS_CPU_PARALLEL_H_
#define NORMD_KERNELS_CPU_PARALLEL_H_

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>

namespace normd::norm::cpu {

// The least elements worth a task of their own.
inline constexpr std::int64_t kTaskElements = 64 << 10;
inline constexpr std::int64_t kTaskBytes = 128 << 10;

// Runs loops in the caller's task arena, or on its thread alone if `threads` is 1. Loops may nest.
class Parallel {
 public:
  explicit Parallel(int threads) : threads_(threads) {}

  int threads() const { return threads_; }

  // Calls body(begin, end) for ranges that cover [0, count), of at least about `grain` each.
  template <class Body>
  void For(std::int64_t count, std::int64_t grain, const Body& body) const {
    if (threads_ == 1 || count <= grain) {
      if (count > 0) body(std::int64_t{0}, count);
      return;
    }
    using Range = tbb::blocked_range<std::int64_t>;
    tbb::parallel_for(Range(0, count, static_cast<std::size_t>(std::max<std::int64_t>(grain, 1))),
                      [&body](const Range& range) { body(range.begin(), range.end()); });
  }

 private:
  int threads_;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_PARALLEL_H_
