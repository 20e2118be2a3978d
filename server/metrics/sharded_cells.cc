#include "server/metrics/sharded_cells.h"

namespace normd {

constinit thread_local std::size_t ShardedCells::this_threads_shard_ = ShardedCells::kShards;

ShardedCells::ShardedCells(std::size_t cells)
    : lines_per_shard_((cells + kCellsPerLine - 1) / kCellsPerLine),
      lines_(std::make_unique<Line[]>(kShards * lines_per_shard_)) {}

std::size_t ShardedCells::AssignShard() {
  // Process-wide, because a thread has the same shard in every instance.
  static constinit std::atomic<std::size_t> next{0};
  this_threads_shard_ = next.fetch_add(1, std::memory_order_relaxed) % kShards;
  return this_threads_shard_;
}

std::int64_t ShardedCells::Sum(std::size_t cell) const {
  std::int64_t sum = 0;
  for (std::size_t shard = 0; shard < kShards; ++shard) {
    sum += Part(shard, cell).load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace normd
