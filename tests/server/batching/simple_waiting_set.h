// A model of WaitingSet that is too simple to be wrong: a list of what waits, searched from end to
// end at each question.

#ifndef NORMD_TESTS_SERVER_BATCHING_SIMPLE_WAITING_SET_H_
#define NORMD_TESTS_SERVER_BATCHING_SIMPLE_WAITING_SET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "server/batching/batch_policy.h"
#include "server/model/model.h"
#include "tests/server/batching/decide_batch.h"

namespace normd {

// The contract, word for word.
class SimpleWaitingSet {
 public:
  using Ids = std::vector<std::uint64_t>;
  using Line = std::pair<const Model*, norm::DType>;
  struct Entry {
    std::uint64_t id;
    Line line;
    std::uint64_t holder;
    WaitingRequest facts;
    std::uint64_t sequence = 0;
  };

  SimpleWaitingSet(std::map<const Model*, BatchLimits> limits, Duration aging)
      : limits_(std::move(limits)), aging_(aging) {}

  void Add(Entry entry) {
    if (HoldersOf(entry.line).count(entry.holder) == 0) holders_[entry.line].Enter(entry.holder);
    entry.sequence = ++sequence_;
    entries_.push_back(std::move(entry));
    std::stable_sort(entries_.begin(), entries_.end(),
                     [&](const Entry& a, const Entry& b) { return Due(a) < Due(b); });
  }
  // Where nothing waits, nobody has a debt to anybody.
  bool Remove(std::uint64_t id) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.id == id; });
    if (found == entries_.end()) return false;
    const Line line = found->line;
    entries_.erase(found);
    const auto waits = [&](const auto& which) {
      return std::any_of(entries_.begin(), entries_.end(), which);
    };
    if (!waits([&](const Entry& one) { return one.line == line; })) holders_.erase(line);
    if (!waits([&](const Entry& one) { return one.line.first == line.first; })) {
      lines_.erase(line.first);
    }
    if (entries_.empty()) models_ = {};
    return true;
  }
  Ids RemoveExpired(TimePoint now) {
    std::vector<std::pair<TimePoint, std::uint64_t>> expired;
    for (const Entry& entry : entries_) {
      if (entry.facts.expires <= now) expired.emplace_back(entry.facts.expires, entry.id);
    }
    std::sort(expired.begin(), expired.end());
    Ids ids;
    for (const auto& [deadline, id] : expired) ids.push_back(id);
    for (const std::uint64_t id : ids) Remove(id);
    return ids;
  }
  // What may be the next batch: for each model whose turn begins first, that of its line whose turn
  // it is. Any, if there are several.
  std::vector<Ids> Next(TimePoint now) {
    std::map<const Model*, std::tuple<VirtualTime, std::uint64_t, Ids>> of_models;
    for (const Line& line : Lines()) {
      Ids ids;
      const std::vector<Entry> order = OrderOf(line);
      const std::size_t take = Decide(order, now).take;
      for (std::size_t i = 0; i < take; ++i) ids.push_back(order[i].id);
      if (take == 0) continue;
      const auto turn = std::make_tuple(lines_[line.first].BeginOf(line), order[0].sequence, ids);
      const auto [other, is_first] = of_models.emplace(line.first, turn);
      if (!is_first) other->second = std::min(other->second, turn);
    }
    std::vector<Ids> next;
    VirtualTime first = std::numeric_limits<VirtualTime>::max();
    for (const auto& [model, turn] : of_models) {
      const VirtualTime begin = models_.BeginOf(model);
      if (begin < first) next.clear();
      first = std::min(first, begin);
      if (begin == first) next.push_back(std::get<Ids>(turn));
    }
    return next;
  }
  void Take(const Ids& batch) {
    VirtualTime charge = 0;
    Line line;
    for (const std::uint64_t id : batch) {
      const auto found = std::find_if(entries_.begin(), entries_.end(),
                                      [&](const Entry& entry) { return entry.id == id; });
      line = found->line;
      holders_[line].Take(found->holder, Charge(found->facts), HoldersOf(line).size());
      charge += Charge(found->facts);
      if (id != batch.back()) Remove(id);
    }
    lines_[line.first].Take(line, charge);
    models_.Take(line.first, charge);
    if (!batch.empty()) Remove(batch.back());
  }
  TimePoint NextBatch(TimePoint now) {
    TimePoint next = kNever;
    for (const Line& line : Lines()) {
      const BatchDecision decision = Decide(OrderOf(line), now);
      if (decision.take > 0) return kAtOnce;
      next = std::min(next, decision.ask_again);
    }
    return next;
  }
  TimePoint NextDeadline() const {
    TimePoint next = kNever;
    for (const Entry& entry : entries_) next = std::min(next, entry.facts.expires);
    return next;
  }
  const std::vector<Entry>& entries() const { return entries_; }
  void Close() { closing_ = true; }

 private:
  template <typename Key>
  struct SimpleTurns {
    std::map<Key, VirtualTime> ends;
    VirtualTime now = 0;

    VirtualTime BeginOf(const Key& key) { return std::max(now, ends[key]); }
    void Take(const Key& key, VirtualTime charge) {
      now = BeginOf(key);
      ends[key] = now + charge;
    }
  };

  // Virtual time passes here too.
  struct HolderTurns {
    std::map<std::uint64_t, VirtualTime> begins;
    VirtualTime now = 0;
    VirtualTime passed = 0;

    // For one that nothing was waiting of.
    void Enter(std::uint64_t holder) { begins[holder] = std::max(begins[holder], now); }
    void Take(std::uint64_t holder, VirtualTime charge, std::size_t waiting) {
      const auto shares = static_cast<VirtualTime>(waiting + 1);
      passed += charge;
      now = std::max(now, begins[holder]) + passed / shares;
      passed %= shares;
      begins[holder] += charge;
    }
  };

  std::set<std::uint64_t> HoldersOf(const Line& line) const {
    std::set<std::uint64_t> holders;
    for (const Entry& entry : entries_) {
      if (entry.line == line) holders.insert(entry.holder);
    }
    return holders;
  }
  TimePoint Due(const Entry& entry) const {
    return DueAt(entry.facts.priority, entry.facts.admitted, aging_);
  }
  std::vector<Line> Lines() const {
    std::vector<Line> lines;
    for (const Entry& entry : entries_) lines.push_back(entry.line);
    std::sort(lines.begin(), lines.end());
    lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
    return lines;
  }
  // A line's requests as they leave if no other comes.
  std::vector<Entry> OrderOf(const Line& line) {
    std::map<std::uint64_t, std::vector<Entry>> left;  // By holder, the last one first.
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (entry->line == line) left[entry->holder].push_back(*entry);
    }
    HolderTurns turns = holders_[line];
    std::vector<Entry> order;
    while (!left.empty()) {
      const auto next = std::min_element(left.begin(), left.end(), [&](auto& a, auto& b) {
        return std::make_pair(turns.begins[a.first], a.second.back().sequence) <
               std::make_pair(turns.begins[b.first], b.second.back().sequence);
      });
      order.push_back(next->second.back());
      turns.Take(next->first, Charge(order.back().facts), left.size());
      next->second.pop_back();
      if (next->second.empty()) left.erase(next);
    }
    return order;
  }
  BatchDecision Decide(const std::vector<Entry>& order, TimePoint now) const {
    std::vector<WaitingRequest> waiting;
    for (const Entry& entry : order) waiting.push_back(entry.facts);
    return DecideBatch(waiting, limits_.at(order[0].line.first), now, closing_);
  }

  std::map<const Model*, BatchLimits> limits_;
  const Duration aging_;
  std::uint64_t sequence_ = 0;
  std::vector<Entry> entries_;  // By DueAt, then by arrival.
  SimpleTurns<const Model*> models_;
  std::map<const Model*, SimpleTurns<Line>> lines_;
  std::map<Line, HolderTurns> holders_;
  bool closing_ = false;
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_BATCHING_SIMPLE_WAITING_SET_H_
