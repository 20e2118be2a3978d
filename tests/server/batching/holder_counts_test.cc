#include "server/batching/holder_counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace normd {
namespace {

struct Counted : HolderCounts::Entry {
  std::uint64_t holder = 0;
  bool may_be_dropped = false;
};

// What HolderCounts says, against a list that is searched.
TEST(HolderCountsTest, AgreesWithAListUnderRandomChanges) {
  std::mt19937 random(7);
  HolderCounts::Spares spares;  // Shared by both: one reuses what the other returns.
  HolderCounts counts[2];
  std::vector<std::unique_ptr<Counted>> waiting[2];
  for (int step = 0; step < 20000; ++step) {
    const std::size_t which = random() % 2;
    std::vector<std::unique_ptr<Counted>>& list = waiting[which];
    if (list.empty() || random() % 100 < (step / 1000 % 2 == 0 ? 70u : 30u)) {
      auto& added = list.emplace_back(std::make_unique<Counted>());
      added->holder = random() % 6;
      added->may_be_dropped = random() % 4 != 0;
      HolderCounts::Reserve(spares);
      counts[which].Add(*added, added->holder, added->may_be_dropped, spares);
    } else {
      const auto gone = list.begin() + static_cast<std::ptrdiff_t>(random() % list.size());
      counts[which].Remove(**gone, (*gone)->holder, spares);
      list.erase(gone);
    }
    std::map<std::uint64_t, std::int64_t> all;
    std::map<std::uint64_t, std::int64_t> droppable;
    std::map<std::uint64_t, const Counted*> newest;
    for (const auto& entry : list) {
      if (entry->holder == 0) continue;  // Nobody's.
      ++all[entry->holder];
      if (!entry->may_be_dropped) continue;
      ++droppable[entry->holder];
      newest[entry->holder] = entry.get();
    }
    std::int64_t most = 0;
    for (const auto& [holder, count] : droppable) most = std::max(most, count);
    for (std::uint64_t holder = 0; holder < 7; ++holder) {
      ASSERT_EQ(counts[which].WaitingOf(holder), all[holder]);
    }
    ASSERT_EQ(counts[which].MostDroppable(), most);
    if (most == 0) continue;
    const auto& given = static_cast<const Counted&>(counts[which].Droppable());
    ASSERT_EQ(droppable[given.holder], most);
    ASSERT_EQ(&given, newest[given.holder]);
  }
  for (const std::size_t which : {0, 1}) {
    for (const auto& entry : waiting[which]) counts[which].Remove(*entry, entry->holder, spares);
    EXPECT_EQ(counts[which].MostDroppable(), 0);
  }
}

}  // namespace
}  // namespace normd
