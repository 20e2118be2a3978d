#include "server/metrics/sharded_cells.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace normd {
namespace {

TEST(ShardedCellsTest, BeginsAtZero) {
  const ShardedCells cells(3);
  for (std::size_t cell = 0; cell < 3; ++cell) EXPECT_EQ(cells.Sum(cell), 0);
}

TEST(ShardedCellsTest, TakesMemoryWithTheFirstAdd) {
  ShardedCells cells(3);
  EXPECT_TRUE(cells.Untouched());
  cells.Add(2, 0);
  EXPECT_FALSE(cells.Untouched());
}

TEST(ShardedCellsTest, LosesNothingWhenManyThreadsAddFirstAtOnce) {
  for (int round = 0; round < 200; ++round) {
    ShardedCells cells(1);
    std::atomic<int> waiting{4};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        cells.Add(0, 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(cells.Sum(0), 4);
  }
}

TEST(ShardedCellsTest, KeepsCellsApartAcrossCacheLines) {
  constexpr std::size_t kCells = 20;
  ShardedCells cells(kCells);
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    cells.Add(cell, static_cast<std::int64_t>(cell) * 3 - 7);
  }
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    EXPECT_EQ(cells.Sum(cell), static_cast<std::int64_t>(cell) * 3 - 7) << cell;
  }
}

TEST(ShardedCellsTest, AddsUpWhatMoreThreadsThanShardsAdd) {
  ShardedCells cells(2);
  std::vector<std::thread> threads;
  threads.reserve(24);
  for (int t = 0; t < 24; ++t) {
    threads.emplace_back([&cells] {
      for (int i = 0; i < 1000; ++i) {
        cells.Add(0, 2);
        cells.Add(1, -1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cells.Sum(0), 48000);
  EXPECT_EQ(cells.Sum(1), -24000);
}

}  // namespace
}  // namespace normd
