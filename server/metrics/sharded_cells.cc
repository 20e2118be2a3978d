#include "server/metrics/sharded_cells.h"

#include <new>

namespace normd {

constinit thread_local std::size_t ShardedCells::this_threads_shard_ = ShardedCells::kShards;

std::size_t ShardedCells::AssignShard() {
  // Process-wide, because a thread has the same shard in every instance.
  static constinit std::atomic<std::size_t> next{0};
  this_threads_shard_ = next.fetch_add(1, std::memory_order_relaxed) % kShards;
  return this_threads_shard_;
}

// Not inlined into Add, which the compiler can then keep in registers.
ShardedCells::Line* ShardedCells::Allocate() {
  Line* const fresh = new (std::nothrow) Line[kShards * lines_per_shard_];
  Line* found = nullptr;
  // If two threads are first, one wins and both use its memory. Release publishes the zeros;
  // acquire on failure is for the winner's.
  if (lines_.compare_exchange_strong(found, fresh, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
    return fresh;
  }
  delete[] fresh;
  return found;
}

std::int64_t ShardedCells::Sum(std::size_t cell) const {
  Line* const lines = lines_.load(std::memory_order_acquire);
  if (lines == nullptr) return 0;
  std::int64_t sum = 0;
  for (std::size_t shard = 0; shard < kShards; ++shard) {
    sum += Part(lines, shard, cell).load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace normd
