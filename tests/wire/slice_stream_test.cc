#include "wire/slice_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/tensor.h"
#include "tests/wire/agreement.h"
#include "tests/wire/wire_writer.h"

namespace normd::testing {
namespace {

TEST(SliceStreamTest, NeverGivesAnEmptyBuffer) {
  // As many empty slices before, between and behind the bytes as nobody would send in good faith.
  std::vector<std::size_t> cuts(100000, 0);
  cuts.insert(cuts.end(), 100000, 3);
  cuts.insert(cuts.end(), 100000, 5);
  const Slices slices("hello", cuts);
  SliceStream stream(slices.views());
  std::string read;
  const void* data = nullptr;
  int size = 0;
  int buffers = 0;
  while (stream.Next(&data, &size)) {
    ASSERT_GT(size, 0);
    read.append(static_cast<const char*>(data), static_cast<std::size_t>(size));
    ++buffers;
  }
  EXPECT_EQ(read, "hello");
  EXPECT_EQ(buffers, 2);
  EXPECT_FALSE(stream.Next(&data, &size));
}

TEST(SliceStreamTest, BacksUpAndSkipsAcrossEmptySlices) {
  std::mt19937_64 random(norm::testing::TestSeed());
  for (int i = 0; i < 2000; ++i) {
    std::string wire(random() % 60, '\0');
    for (char& c : wire) c = static_cast<char>(random());
    const Slices slices(wire, RandomCuts(random, wire.size(), 20));
    SliceStream stream(slices.views());
    std::size_t at = 0;
    const void* data = nullptr;
    int size = 0;
    while (at < wire.size()) {
      if (random() % 3 == 0) {
        const int skip = static_cast<int>(random() % 8);
        const std::size_t left = wire.size() - at;
        ASSERT_EQ(stream.Skip(skip), static_cast<std::size_t>(skip) <= left);
        at += std::min(static_cast<std::size_t>(skip), left);
      } else {
        ASSERT_TRUE(stream.Next(&data, &size));
        ASSERT_EQ(std::string(static_cast<const char*>(data), static_cast<std::size_t>(size)),
                  wire.substr(at, static_cast<std::size_t>(size)));
        const int back = static_cast<int>(random() % (static_cast<unsigned>(size) + 1));
        stream.BackUp(back);
        at += static_cast<std::size_t>(size - back);
      }
      ASSERT_EQ(stream.ByteCount(), static_cast<std::int64_t>(at));
    }
    ASSERT_FALSE(stream.Next(&data, &size));
  }
}

}  // namespace
}  // namespace normd::testing
