// Counts that change too seldom to be sharded.

#ifndef NORMD_SERVER_METRICS_RARE_COUNTS_H_
#define NORMD_SERVER_METRICS_RARE_COUNTS_H_

#include <array>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "server/metrics/families.h"

namespace normd {

// Thread-safe. Relaxed: nothing else is published with it.
class RareCount {
 public:
  void Add(std::int64_t number) { number_.fetch_add(number, std::memory_order_relaxed); }
  void Set(std::int64_t number) { number_.store(number, std::memory_order_relaxed); }
  double Get() const { return static_cast<double>(number_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<std::int64_t> number_{0};
};

// A count for each value of a label. Thread-safe.
template <std::size_t kCount>
class RareCounts {
 public:
  // `label` is an enum's value, or a bool.
  template <typename Label>
  void Add(Label label, std::int64_t number = 1) {
    const auto index = static_cast<std::size_t>(label);
    assert(index < kCount);
    counts_[index].Add(number);
  }
  // That of the value with this number.
  double Get(std::size_t label) const { return counts_[label].Get(); }
  // `names` are the label's, in the order of its values.
  template <std::size_t kNames>
  void Collect(const Family& family, const absl::string_view (&names)[kNames],
               FamilyList& out) const {
    static_assert(kNames == kCount);
    for (std::size_t i = 0; i < kCount; ++i) out.Add(family, {names[i]}, counts_[i].Get());
  }

 private:
  std::array<RareCount, kCount> counts_;
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_RARE_COUNTS_H_
