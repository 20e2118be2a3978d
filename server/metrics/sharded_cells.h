// Counters that many threads add to without contention.

#ifndef NORMD_SERVER_METRICS_SHARDED_CELLS_H_
#define NORMD_SERVER_METRICS_SHARDED_CELLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace normd {

// A fixed number of 64-bit cells, each the sum of one part per shard. A thread adds to its own
// shard, whose cells share no cache line with another shard's; with more threads than shards some
// share one, which costs time but no counts.
// The first Add allocates the memory, 1 KiB for every eight cells. If memory is short, that Add is
// lost and the next one tries again. Thread-safe except for the move; Add takes no lock, and only
// the first one allocates.
class ShardedCells {
 public:
  explicit ShardedCells(std::size_t cells)
      : lines_per_shard_((cells + kCellsPerLine - 1) / kCellsPerLine) {}
  ~ShardedCells() { delete[] lines_.load(std::memory_order_relaxed); }
  // Only before other threads know of `other`.
  ShardedCells(ShardedCells&& other) noexcept
      : lines_per_shard_(other.lines_per_shard_), lines_(other.lines_.exchange(nullptr)) {}
  ShardedCells& operator=(ShardedCells&&) = delete;

  void Add(std::size_t cell, std::int64_t delta) {
    // Acquire: a thread that sees the pointer sees the zeros behind it.
    Line* lines = lines_.load(std::memory_order_acquire);
    if (lines == nullptr && (lines = Allocate()) == nullptr) return;
    // Relaxed: cells publish no other memory, and a sum only promises to miss no finished Add.
    Part(lines, ThisThreadsShard(), cell).fetch_add(delta, std::memory_order_relaxed);
  }

  // Includes every Add that happened before the call, and any part of concurrent ones. So a cell
  // that is also subtracted from may read below any value that it ever had.
  std::int64_t Sum(std::size_t cell) const;
  // Nothing was ever added.
  bool Untouched() const { return lines_.load(std::memory_order_acquire) == nullptr; }

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

  Line* Allocate();
  std::atomic<std::int64_t>& Part(Line* lines, std::size_t shard, std::size_t cell) const {
    return lines[shard * lines_per_shard_ + cell / kCellsPerLine].cells[cell % kCellsPerLine];
  }

  const std::size_t lines_per_shard_;
  std::atomic<Line*> lines_{nullptr};  // Owned; set once.
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_SHARDED_CELLS_H_
