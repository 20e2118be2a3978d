// The set against a model of it that is too simple to be wrong: a list of what waits, searched from
// end to end at each question.

#include "server/batching/waiting_set.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"

namespace normd {
namespace {

using std::chrono::microseconds;
using Ids = std::vector<std::uint64_t>;

struct Entry {
  std::uint64_t id;
  std::pair<const Model*, norm::DType> key;
  WaitingRequest facts;
  TimePoint deadline;
};

// The contract, word for word, in linear time.
class SimpleSet {
 public:
  explicit SimpleSet(std::map<const Model*, BatchLimits> limits) : limits_(std::move(limits)) {}

  void Add(Entry entry) { entries_.push_back(std::move(entry)); }
  bool Remove(std::uint64_t id) {
    return std::erase_if(entries_, [id](const Entry& entry) { return entry.id == id; }) > 0;
  }
  Ids RemoveExpired(TimePoint now) {
    std::stable_sort(entries_.begin(), entries_.end(), ByDeadline);
    Ids expired;
    for (const Entry& entry : entries_) {
      if (entry.deadline <= now) expired.push_back(entry.id);
    }
    for (const std::uint64_t id : expired) Remove(id);
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.id < b.id; });
    return expired;
  }
  // Entries are in order of arrival, so the first whose line may go heads the next batch.
  Ids Take(TimePoint now) {
    for (const Entry& entry : entries_) {
      Ids line;
      const BatchDecision decision = Decide(entry, now, line);
      if (decision.take == 0 || line.front() != entry.id) continue;
      line.resize(decision.take);
      for (const std::uint64_t id : line) Remove(id);
      return line;
    }
    return {};
  }
  TimePoint NextBatch(TimePoint now) const {
    TimePoint next = kNever;
    for (const Entry& entry : entries_) {
      Ids line;
      const BatchDecision decision = Decide(entry, now, line);
      if (decision.take > 0) return kAtOnce;
      next = std::min(next, decision.ask_again);
    }
    return next;
  }
  TimePoint NextDeadline() const {
    TimePoint next = kNever;
    for (const Entry& entry : entries_) next = std::min(next, entry.deadline);
    return next;
  }
  const std::vector<Entry>& entries() const { return entries_; }
  void Close() { closing_ = true; }

 private:
  static bool ByDeadline(const Entry& a, const Entry& b) {
    return std::pair(a.deadline, a.id) < std::pair(b.deadline, b.id);
  }
  BatchDecision Decide(const Entry& of, TimePoint now, Ids& line) const {
    std::vector<WaitingRequest> waiting;
    for (const Entry& entry : entries_) {
      if (entry.key != of.key) continue;
      waiting.push_back(entry.facts);
      line.push_back(entry.id);
    }
    return DecideBatch(waiting, limits_.at(of.key.first), now, closing_);
  }

  std::map<const Model*, BatchLimits> limits_;
  std::vector<Entry> entries_;
  bool closing_ = false;
};

class WaitingSetTest : public testing::Test {
 protected:
  void Push();
  void CancelOne();
  void Expire();
  void Take();

  Ids IdsOf(const std::vector<std::unique_ptr<Request>>& requests) {
    Ids ids;
    for (const auto& request : requests) ids.push_back(request->id);
    return ids;
  }
  int UpTo(int limit) { return std::uniform_int_distribution<int>(0, limit)(random_); }

  FakeClock clock_;
  CountingModelMetrics metrics_;
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  std::vector<std::shared_ptr<const Model>> models_ = {
      MakeRowModel(metrics_, "max_rows: 3", "rows"),
      MakeRowModel(metrics_, "max_bytes: 40 max_queue_delay_us: 20", "bytes"),
      MakeRowModel(metrics_, "max_rows: 4 max_queue_delay_us: 7", "delayed")};
  WaitingSet set_{BatchQueueOptions{.limits = {}, .max_queue_requests = 1000}};
  SimpleSet simple_{{{models_[0].get(), {.max_rows = 3}},
                     {models_[1].get(), {.max_bytes = 40, .max_queue_delay = microseconds(20)}},
                     {models_[2].get(), {.max_rows = 4, .max_queue_delay = microseconds(7)}}}};
};

void WaitingSetTest::Push() {
  const auto& model = models_[static_cast<std::size_t>(UpTo(2))];
  const norm::DType dtype = UpTo(1) == 0 ? norm::DType::kFloat32 : norm::DType::kFloat16;
  RequestProbe probe(model, {UpTo(3), 1, 1 + UpTo(3)}, dtype);
  std::unique_ptr<Request>& request = probe.request();
  if (UpTo(2) == 0) request->deadline = clock_.Now() + microseconds(1 + UpTo(30));
  simple_.Add({request->id,
               {model.get(), dtype},
               {request->geometry.rows, request->geometry.LargerBytes(), clock_.Now()},
               request->deadline});
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
  const std::unique_ptr<Batch> batch = set_.TakeBatch(clock_.Now());
  EXPECT_EQ(batch == nullptr ? Ids() : IdsOf(batch->requests), simple_.Take(clock_.Now()));
}

TEST_F(WaitingSetTest, DoesWhatTheSimpleSetDoes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  constexpr int kSteps = 20000;
  for (int i = 0; i < kSteps && !HasFailure(); ++i) {
    if (i == kSteps - 30) {
      set_.Close();
      simple_.Close();
    }
    switch (UpTo(9)) {
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
  EXPECT_EQ(metrics_.queued, 0);
}

}  // namespace
}  // namespace normd
