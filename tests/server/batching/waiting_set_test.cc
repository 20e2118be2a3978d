#include "server/batching/waiting_set.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/metrics.h"
#include "tests/server/batching/simple_waiting_set.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"

namespace normd {
namespace {

using std::chrono::microseconds;
using ::testing::Contains;
using ::testing::IsEmpty;
using Ids = SimpleWaitingSet::Ids;

class WaitingSetTest : public testing::Test {
 protected:
  void Push();
  void CancelOne();
  void Expire();
  void Take();

  Ids IdsOf(absl::Span<const std::unique_ptr<Request>> requests) {
    Ids ids;
    for (const auto& request : requests) ids.push_back(request->id);
    return ids;
  }
  int UpTo(int limit) { return std::uniform_int_distribution<int>(0, limit)(random_); }

  FakeClock clock_;
  ModelMetrics metrics_;
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  std::vector<std::shared_ptr<const Model>> models_ = {
      MakeRowModel(metrics_, "max_rows: 3", "rows"),
      MakeRowModel(metrics_, "max_bytes: 40 max_queue_delay_us: 20", "bytes"),
      MakeRowModel(metrics_, "max_rows: 4 max_queue_delay_us: 7", "delayed")};
  static constexpr Duration kAging = microseconds(10);
  WaitingSet set_{
      BatchQueueOptions{.limits = {}, .max_queue_requests = 1000, .priority_aging = kAging},
      clock_};
  SimpleWaitingSet simple_{
      {{models_[0].get(), {.max_rows = 3}},
       {models_[1].get(), {.max_bytes = 40, .max_queue_delay = microseconds(20)}},
       {models_[2].get(), {.max_rows = 4, .max_queue_delay = microseconds(7)}}},
      kAging};
};

void WaitingSetTest::Push() {
  const auto& model = models_[static_cast<std::size_t>(UpTo(2))];
  const norm::DType dtype = UpTo(1) == 0 ? norm::DType::kFloat32 : norm::DType::kFloat16;
  RequestProbe probe(model, {UpTo(3), 1, 1 + UpTo(3)}, dtype);
  std::unique_ptr<Request>& request = probe.request();
  if (UpTo(2) == 0) request->deadline = clock_.Now() + microseconds(1 + UpTo(30));
  if (UpTo(2) == 0) request->queue_timeout = microseconds(1 + UpTo(30));
  request->priority = static_cast<Priority>(UpTo(2));
  request->holder = static_cast<std::uint64_t>(UpTo(3));
  request->admitted = clock_.Now();
  simple_.Add({request->id,
               {model.get(), dtype},
               request->holder,
               {request->geometry.rows, request->geometry.LargerBytes(), clock_.Now(),
                request->priority, WaitsUntil(*request)}});
  EXPECT_TRUE(set_.Add(request, clock_.Now()).ok());
}

void WaitingSetTest::CancelOne() {
  if (simple_.entries().empty()) return;
  const auto size = static_cast<int>(simple_.entries().size());
  const std::uint64_t id = simple_.entries()[static_cast<std::size_t>(UpTo(size - 1))].id;
  const std::unique_ptr<Request> removed = set_.Remove(id, clock_.Now());
  ASSERT_NE(removed, nullptr);
  EXPECT_EQ(removed->id, id);
  EXPECT_TRUE(simple_.Remove(id));
  EXPECT_EQ(set_.Remove(id, clock_.Now()), nullptr);
}

void WaitingSetTest::Expire() {
  EXPECT_EQ(IdsOf(set_.RemoveExpired(clock_.Now())), simple_.RemoveExpired(clock_.Now()));
}

void WaitingSetTest::Take() {
  const std::vector<Ids> allowed = simple_.Next(clock_.Now());
  const std::unique_ptr<Batch> batch = set_.TakeBatch(clock_.Now());
  if (batch == nullptr) {
    EXPECT_THAT(allowed, IsEmpty());
    return;
  }
  const Ids ids = IdsOf(batch->requests);
  EXPECT_THAT(allowed, Contains(ids));
  simple_.Take(ids);
}

TEST_F(WaitingSetTest, DoesWhatTheSimpleSetDoes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  constexpr int kSteps = 20000;
  for (int i = 0; i < kSteps && !HasFailure(); ++i) {
    if (i == kSteps - 30) {
      set_.EndQueueDelay();
      simple_.Close();
    }
    // Lines that grow, and lines that empty.
    switch (UpTo(i / 200 % 2 == 0 ? 9 : 13)) {
      case 0:
      case 1:
      case 2:
      case 3: Push(); break;
      case 4: CancelOne(); break;
      case 5: Expire(); break;
      case 6: clock_.Advance(microseconds(UpTo(6))); break;
      default: Take();
    }
    ASSERT_EQ(set_.size(), static_cast<std::int64_t>(simple_.entries().size()));
    ASSERT_EQ(set_.NextDeadline(), simple_.NextDeadline());
    const TimePoint next = set_.NextBatch();
    const TimePoint expected = simple_.NextBatch(clock_.Now());
    // The set keeps the end of a delay that has passed as the time that it was.
    ASSERT_TRUE(next == expected || (expected == kAtOnce && next <= clock_.Now()));
  }
  set_.RemoveAll(clock_.Now());
  EXPECT_EQ(set_.size(), 0);
  EXPECT_EQ(set_.NextBatch(), kNever);
  EXPECT_EQ(set_.NextDeadline(), kNever);
  EXPECT_EQ(Queued(metrics_), 0);
}

// And a request that nobody can end any more ends with its memory.
TEST_F(WaitingSetTest, WithoutMemoryABatchHasOneRequest) {
  set_.EndQueueDelay();
  std::vector<std::unique_ptr<RequestProbe>> probes;
  for (int i = 0; i < 3; ++i) {
    probes.push_back(
        std::make_unique<RequestProbe>(models_[0], std::vector<std::int64_t>{1, 1, 1}));
    ASSERT_TRUE(set_.Add(probes.back()->request(), clock_.Now()).ok());
  }
  for (int i = 0; i < 3; ++i) {
    std::unique_ptr<Batch> batch;
    {
      const FailingAllocations failing(0);
      batch = set_.TakeBatch(clock_.Now());
    }
    ASSERT_NE(batch, nullptr);
    ASSERT_EQ(IdsOf(batch->requests), Ids{probes[i]->id()});
    EXPECT_EQ(probes[i]->done_calls(), 0);
    batch.reset();
    EXPECT_EQ(probes[i]->done_calls(), 1);
    EXPECT_EQ(probes[i]->code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(set_.size(), 0);
}

TEST_F(WaitingSetTest, WithoutMemoryRequestsExpireLater) {
  std::vector<std::unique_ptr<RequestProbe>> probes;
  for (int i = 0; i < 3; ++i) {
    probes.push_back(
        std::make_unique<RequestProbe>(models_[0], std::vector<std::int64_t>{1, 1, 1}));
    probes.back()->request()->deadline = clock_.Now() + microseconds(1);
    ASSERT_TRUE(set_.Add(probes.back()->request(), clock_.Now()).ok());
  }
  clock_.Advance(microseconds(2));
  std::vector<std::unique_ptr<Request>> expired;
  {
    const FailingAllocations failing(1);
    expired = set_.RemoveExpired(clock_.Now());
  }
  EXPECT_EQ(expired.size(), 1u);
  EXPECT_EQ(set_.RemoveExpired(clock_.Now()).size(), 2u);
}

TEST_F(WaitingSetTest, AnAddThatFindsNoMemoryChangesNothing) {
  RequestProbe waiting(models_[0], {1, 1, 1});
  const std::uint64_t id = waiting.id();
  ASSERT_TRUE(set_.Add(waiting.request(), clock_.Now()).ok());
  int failures = 0;
  for (int left = 0;; ++left) {
    RequestProbe probe(models_[2], {1, 1, 1});
    probe.request()->deadline = clock_.Now() + microseconds(50);
    try {
      const FailingAllocations failing(left);
      static_cast<void>(set_.Add(probe.request(), clock_.Now()));
      break;
    } catch (const std::bad_alloc&) {
    }
    ++failures;
    EXPECT_NE(probe.request(), nullptr);
    EXPECT_EQ(set_.size(), 1);
    EXPECT_EQ(set_.NextDeadline(), kNever);
    EXPECT_EQ(Queued(metrics_), 1);
    EXPECT_EQ(set_.Remove(probe.id(), clock_.Now()), nullptr);
  }
  EXPECT_GT(failures, 0);
  EXPECT_EQ(set_.size(), 2);
  EXPECT_EQ(IdsOf(set_.TakeBatch(clock_.Now())->requests), Ids{id});
  set_.RemoveAll(clock_.Now());
}

TEST_F(WaitingSetTest, ARequestAllocatesNothingOnceAsManyHaveWaited) {
  const auto round = [&] {
    std::vector<std::unique_ptr<RequestProbe>> probes;
    for (int i = 0; i < 50; ++i) {
      probes.push_back(std::make_unique<RequestProbe>(models_[static_cast<std::size_t>(i % 3)],
                                                      std::vector<std::int64_t>{1, 1, 1}));
      probes.back()->request()->priority = static_cast<Priority>(i % 2);
      probes.back()->request()->queue_timeout = microseconds(100 + i);
      probes.back()->request()->holder = static_cast<std::uint64_t>(i % 7);
    }
    for (const auto& probe : probes) ASSERT_TRUE(set_.Add(probe->request(), clock_.Now()).ok());
    for (const auto& probe : probes) ASSERT_NE(set_.Remove(probe->id(), clock_.Now()), nullptr);
  };
  for (int i = 0; i < 3; ++i) round();
  RequestProbe probe(models_[1], {1, 1, 1});
  probe.request()->holder = 99;
  {
    const FailingAllocations failing(0);
    EXPECT_TRUE(set_.Add(probe.request(), clock_.Now()).ok());
  }
  EXPECT_NE(set_.Remove(probe.id(), clock_.Now()), nullptr);
}

// Which requests give way, against a list of those that wait.

class WaitingSetHoldersTest : public testing::Test {
 protected:
  struct Entry {
    std::uint64_t id;
    std::uint64_t holder;
    bool may_be_dropped;
    std::size_t model = 0;
  };
  static constexpr std::int64_t kMost = 12;

  ~WaitingSetHoldersTest() override { set_.RemoveAll(clock_.Now()); }

  // Counts requests for one model.
  std::int64_t Count(std::size_t model, std::uint64_t holder, bool droppable_only) const {
    return std::count_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.model == model && entry.holder == holder &&
             (entry.may_be_dropped || !droppable_only);
    });
  }
  std::int64_t MostDroppable(std::size_t model) const {
    std::int64_t most = 0;
    for (std::uint64_t holder = 1; holder < 9; ++holder) {
      most = std::max(most, Count(model, holder, true));
    }
    return most;
  }
  std::unique_ptr<RequestProbe> Make(std::uint64_t holder, bool may_be_dropped = true,
                                     std::size_t model = 0) {
    auto probe = std::make_unique<RequestProbe>(models_[model], std::vector<std::int64_t>{1, 1, 1});
    probe->request()->holder = holder;
    probe->request()->may_be_dropped = may_be_dropped;
    return probe;
  }
  void Add(const Entry& entry, std::unique_ptr<Request>& request) {
    const std::size_t model = entry.model;
    const bool full = std::count_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& e) { return e.model == model; }) == kMost;
    const bool gives_way =
        entry.holder != 0 && MostDroppable(model) >= Count(model, entry.holder, false) + 2;
    WaitingSet::Added added = set_.Add(request, clock_.Now());
    ASSERT_EQ(added.ok(), !full || gives_way);
    ASSERT_EQ(added.dropped != nullptr, full && gives_way);
    ASSERT_EQ(added.rejection.has_value(), full);
    if (added.dropped != nullptr) {
      // The newest of one that has most, and never what may not be dropped.
      const std::uint64_t victim = added.dropped->holder;
      EXPECT_TRUE(absl::IsResourceExhausted(added.dropped_with));
      EXPECT_NE(victim, 0u);
      EXPECT_NE(victim, entry.holder);
      EXPECT_EQ(Count(model, victim, true), MostDroppable(model));
      const auto newest = std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& e) {
        return e.model == model && e.holder == victim && e.may_be_dropped;
      });
      ASSERT_EQ(newest->id, added.dropped->id);
      entries_.erase(std::next(newest).base());
    }
    if (added.ok()) entries_.push_back(entry);
  }

  FakeClock clock_;
  ModelMetrics metrics_;
  // Each with a queue of its own; what one frees of the memory for counts, the other takes.
  std::vector<std::shared_ptr<const Model>> models_ = {
      MakeRowModel(metrics_, "max_rows: 3", "rows"),
      MakeRowModel(metrics_, "max_rows: 3", "others")};
  WaitingSet set_{BatchQueueOptions{.limits = {}, .max_queue_requests = kMost}, clock_};
  std::vector<Entry> entries_;
};

TEST_F(WaitingSetHoldersTest, TheNewestOfWhoeverHasMostGivesWay) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto up_to = [&](int limit) {
    return std::uniform_int_distribution<int>(0, limit)(random);
  };
  for (int i = 0; i < 20000 && !HasFailure(); ++i) {
    clock_.Advance(microseconds(up_to(3)));
    if (up_to(9) == 0 && !entries_.empty()) {
      const auto gone = entries_.begin() + up_to(static_cast<int>(entries_.size()) - 1);
      ASSERT_NE(set_.Remove(gone->id, clock_.Now()), nullptr);
      entries_.erase(gone);
    } else if (up_to(29) == 0) {
      const std::unique_ptr<Batch> batch = set_.TakeBatch(clock_.Now());
      if (batch == nullptr) continue;
      for (const auto& request : batch->requests) {
        std::erase_if(entries_, [&](const Entry& entry) { return entry.id == request->id; });
      }
    } else {
      // The low ones come more often, so that some have most.
      Entry entry{0, static_cast<std::uint64_t>(std::min(up_to(8), up_to(8))), up_to(4) > 0,
                  static_cast<std::size_t>(up_to(1))};
      const auto probe = Make(entry.holder, entry.may_be_dropped, entry.model);
      probe->request()->priority = static_cast<Priority>(up_to(2));
      entry.id = probe->id();
      Add(entry, probe->request());
    }
    ASSERT_EQ(set_.size(), static_cast<std::int64_t>(entries_.size()));
  }
}

TEST_F(WaitingSetHoldersTest, AnAddThatFindsNoMemoryDropsNobody) {
  for (std::int64_t i = 0; i < kMost; ++i) {
    const auto probe = Make(1);
    Add({probe->id(), 1, true}, probe->request());
  }
  int failures = 0;
  for (int left = 0;; ++left) {
    const auto probe = Make(2);
    WaitingSet::Added added;
    try {
      const FailingAllocations failing(left);
      added = set_.Add(probe->request(), clock_.Now());
    } catch (const std::bad_alloc&) {
      ++failures;
      ASSERT_NE(probe->request(), nullptr);
      ASSERT_EQ(set_.size(), kMost);
      continue;
    }
    ASSERT_TRUE(added.ok());
    ASSERT_NE(added.dropped, nullptr);
    EXPECT_EQ(added.dropped->id, entries_.back().id);
    break;
  }
  EXPECT_GT(failures, 0);
  EXPECT_EQ(set_.size(), kMost);
}

}  // namespace
}  // namespace normd
