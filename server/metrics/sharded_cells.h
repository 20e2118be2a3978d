// Counters that many threads add to without meeting.

#ifndef NORMD_SERVER_METRICS_SHARDED_CELLS_H_
#define NORMD_SERVER_METRICS_SHARDED_CELLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace normd {

// A fixed number of 64-bit cells, each the sum of one part per shard. A thread adds to its own
// shard, whose cells share no cache line with another shard's; with more threads than shards some
// share one, which costs time and no count.
// Thread-safe; Add takes no lock and allocates nothing.
class ShardedCells {
 public:
  explicit ShardedCells(std::size_t cells);

  void Add(std::size_t cell, std::int64_t delta) {
    // Relaxed: cells publish no other memory, and a sum only promises to miss no finished Add.
    Part(ThisThreadsShard(), cell).fetch_add(delta, std::memory_order_relaxed);
  }

  // Holds every Add that happened before the call; of those that run meanwhile, any part. So a cell
  // that is also subtracted from may read below what it ever held.
  std::int64_t Sum(std::size_t cell) const;

 private:
  static constexpr std::size_t kShards = 16;
  static constexpr std::size_t kCellsPerLine = 8;
  struct alignas(64) Line {
    std::array<std::atomic<std::int64_t>, kCellsPerLine> cells{};
  };

  // Threads take shards in turn, in the order of their first Add.
  static std::size_t ThisThreadsShard() {
    const std::size_t shard = this_threads_shard_;
    return shard < kShards ? shard : AssignShard();
  }
  static std::size_t AssignShard();
  // constinit, so that reading it needs no guard.
  static constinit thread_local std::size_t this_threads_shard_;

  std::atomic<std::int64_t>& Part(std::size_t shard, std::size_t cell) const {
    return lines_[shard * lines_per_shard_ + cell / kCellsPerLine].cells[cell % kCellsPerLine];
  }

  // Constant after construction.
  std::size_t lines_per_shard_;
  std::unique_ptr<Line[]> lines_;
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_SHARDED_CELLS_H_
