#include "client/capacity/replica_search.h"

#include <gtest/gtest.h>

#include <set>

namespace normd::capacity {
namespace {

TEST(ReplicaSearchTest, FindsTheFewestWithFewQuestions) {
  for (const std::size_t least : {1, 7, 100, 5000}) {
    for (std::size_t extra = 0; extra < 300; ++extra) {
      std::set<std::size_t> asked;
      const auto found = FewestReplicas(least, 10'000, [&](std::size_t replicas) {
        EXPECT_TRUE(asked.insert(replicas).second) << replicas << " asked for twice";
        EXPECT_GE(replicas, least);
        return replicas >= least + extra;
      });
      ASSERT_EQ(found, least + extra);
      EXPECT_LE(asked.size(), 20u);
    }
  }
}

TEST(ReplicaSearchTest, NothingHolds) {
  EXPECT_EQ(FewestReplicas(3, 50, [](std::size_t) { return false; }), std::nullopt);
  EXPECT_EQ(FewestReplicas(51, 50, [](std::size_t) { return true; }), std::nullopt);
  EXPECT_EQ(FewestReplicas(3, 50, [](std::size_t n) { return n == 50; }), 50u);
}

}  // namespace
}  // namespace normd::capacity
