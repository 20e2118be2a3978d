#include "server/batching/turns.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace normd {
namespace {

struct Sender : Turns<Sender>::Member {
  std::vector<VirtualTime> waiting;  // The last one first.
  VirtualTime taken = 0;
};

// WaitingSetTest compares whole orders with a simple model; these are the promises.
class TurnsTest : public testing::Test {
 protected:
  void Send(Sender& sender, VirtualTime charge) {
    sender.waiting.insert(sender.waiting.begin(), charge);
    turns_.Enter(sender, ++sequence_);
  }
  Sender& Take() {
    Sender& next = *turns_.First();
    const VirtualTime charge = next.waiting.back();
    next.waiting.pop_back();
    next.taken += charge;
    turns_.Take(next, charge);
    turns_.Pass(charge);
    if (next.waiting.empty()) {
      turns_.Rest(next);
    } else {
      turns_.Enter(next, ++sequence_);
    }
    while (turns_.NextPaid() != nullptr) {
    }
    return next;
  }

  Turns<Sender> turns_;
  std::uint64_t sequence_ = 0;
};

TEST_F(TurnsTest, FloodsShareByWorkWhateverTheSizesOfTheirRequests) {
  std::mt19937 random(5);
  std::array<Sender, 4> senders;
  constexpr VirtualTime kLargest = 1000;
  for (int i = 0; i < 5000; ++i) {
    for (Sender& sender : senders) {
      const VirtualTime largest = &sender == &senders[0] ? 10 : kLargest;
      while (sender.waiting.size() < 3)
        Send(sender, 1 + std::uniform_int_distribution<VirtualTime>(0, largest)(random));
    }
    Take();
    const auto [least, most] = std::minmax_element(
        senders.begin(), senders.end(), [](auto& a, auto& b) { return a.taken < b.taken; });
    ASSERT_LE(most->taken - least->taken, kLargest + 1);
  }
}

TEST_F(TurnsTest, OneThatComesAnewWaitsForNoFlood) {
  std::array<Sender, 4> senders;
  for (int i = 0; i < 3; ++i) {
    for (int n = 0; n < 100; ++n) Send(senders[static_cast<std::size_t>(i)], 10);
  }
  for (int i = 0; i < 50; ++i) Take();
  Send(senders[3], 10);
  int before = 0;
  while (&Take() != &senders[3]) ++before;
  EXPECT_LE(before, 3);
}

TEST_F(TurnsTest, OneThatComesOneByOneHasNoMoreThanItsShare) {
  Sender flood;
  Sender one;
  for (int n = 0; n < 200; ++n) Send(flood, 10);
  for (int n = 0; n < 100; ++n) {
    if (one.waiting.empty()) Send(one, 10);
    Take();
  }
  EXPECT_LE(std::abs(one.taken - flood.taken), 10);
}

TEST_F(TurnsTest, OnesThatAreAlwaysNewHoldUpNobody) {
  for (const int at_once : {1, 5}) {
    Sender old;
    for (int n = 0; n < 100; ++n) Send(old, 1);
    std::list<Sender> fresh;
    int takes = 0;
    while (!old.waiting.empty()) {
      while (std::count_if(fresh.begin(), fresh.end(),
                           [](const Sender& one) { return !one.waiting.empty(); }) < at_once) {
        Send(fresh.emplace_back(), 1);
      }
      Take();
      ASSERT_LT(++takes, 100 * (at_once + 3)) << old.taken;
    }
    while (turns_.First() != nullptr) Take();
    turns_ = {};
  }
}

TEST_F(TurnsTest, IdlenessSavesUpNothing) {
  Sender flood;
  Sender idle;
  Send(idle, 10);
  for (int n = 0; n < 300; ++n) Send(flood, 10);
  for (int n = 0; n < 200; ++n) Take();
  flood.taken = idle.taken = 0;
  for (int n = 0; n < 100; ++n) Send(idle, 10);
  for (int n = 0; n < 40; ++n) Take();
  EXPECT_LE(std::abs(idle.taken - flood.taken), 10);
}

}  // namespace
}  // namespace normd
