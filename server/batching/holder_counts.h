// The number of each holder's requests that wait for one model version, and which holder gives way
// first to another's.

#ifndef NORMD_SERVER_BATCHING_HOLDER_COUNTS_H_
#define NORMD_SERVER_BATCHING_HOLDER_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <utility>

#include "server/batching/node.h"

namespace normd {

// Not thread-safe. Costs: O(log n) in the holders, constant for Most and Droppable. Only Reserve
// allocates.
class HolderCounts {
 private:
  struct Holder;
  using Holders = std::list<Holder>;

 public:
  // A waiting request's entry here. Its address is constant while it is counted.
  class Entry {
   public:
    Entry() : link_(1, this), linked_(link_.begin()) {}
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    friend class HolderCounts;
    Holder* holder_ = nullptr;  // Null: it counts against nobody.
    std::list<Entry*> link_;    // Holds `this`, unless that is in Holder::droppable.
    const std::list<Entry*>::iterator linked_;
  };

  // Holders that have nothing, kept for reuse by any number of HolderCounts.
  class Spares {
   private:
    friend class HolderCounts;
    Holders holders_;
  };

  // Reserves the next Add's memory. May throw std::bad_alloc.
  static void Reserve(Spares& spares);
  // Counts `entry` against `holder`, unless that is 0. Requires a Reserve before it.
  void Add(Entry& entry, std::uint64_t holder, bool may_be_dropped, Spares& spares);
  // The same `holder` as for Add.
  void Remove(Entry& entry, std::uint64_t holder, Spares& spares);

  std::int64_t WaitingOf(std::uint64_t holder) const;
  // The droppable entries of the holder with most of them; 0: there are none.
  std::int64_t MostDroppable() const { return ranks_.empty() ? 0 : ranks_.rbegin()->first; }
  // The newest of them. Requires that there is one.
  Entry& Droppable() const { return *ranks_.rbegin()->second->droppable.back(); }

 private:
  using ByKey = std::map<std::uint64_t, Holders::iterator>;
  using Ranks = std::set<std::pair<std::int64_t, Holder*>>;  // By what may be dropped.

  // With something waiting.
  struct Holder {
    Holder();
    std::int64_t waiting = 0;
    std::list<Entry*> droppable;  // In order of arrival.
    Ranks::node_type rank_node;   // While none of them are.
    ByKey::node_type key_node;
  };

  void Rank(Holder& holder, std::size_t count_before);

  Holders holders_;
  ByKey by_key_;  // Finds `holders_`.
  Ranks ranks_;   // Those with something that may be dropped.
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_HOLDER_COUNTS_H_
