// Turns that are fair by work: among models, the types of a model, and the callers of a line.

#ifndef NORMD_SERVER_BATCHING_TURNS_H_
#define NORMD_SERVER_BATCHING_TURNS_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <set>
#include <utility>

#include "server/batching/node.h"

namespace normd {

using VirtualTime = std::int64_t;

// Start-time fair queueing. Virtual time is charged work; it stands still while nothing is taken. A
// member's turn begins where its last one ended, or now if it was absent until later: who is idle
// saves up no share, and loses no debt. The earliest turn is next, and virtual time is at least its
// beginning. So while one member has a flood, another's request waits at most for what
// lanes compute; with several floods, for at most one more turn of each. Source: Goyal, Vin, Cheng,
// "Start-time fair queueing" (1997), with a member's turn as a packet.
//
// Not thread-safe. Costs: O(log n) in the members. Only a member's making allocates.
template <typename T>
class Turns {
 private:
  struct Turn {
    VirtualTime begin = 0;
    std::uint64_t sequence = 0;  // Decides between turns that begin together.
    T* member = nullptr;
    // NOLINTNEXTLINE(modernize-use-nullptr): to clang-tidy 14, 0 is a pointer here.
    friend auto operator<=>(const Turn&, const Turn&) = default;
  };
  using Order = std::set<Turn>;

 public:
  // The base of a T, which takes its turns in one Turns until that forgets it.
  class Member {
   public:
    Member() : node_(NewNode<Order>()) {}
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

   private:
    friend class Turns;
    Turn turn_;
    Order* order_ = nullptr;          // The one that it is in; null: none.
    typename Order::node_type node_;  // While it is in none.
  };

  // The one whose turn it is; null: nobody waits.
  T* First() const { return waiting_.empty() ? nullptr : waiting_.begin()->member; }

  // `member` waits from now on. One that already does keeps its turn, with this `sequence`.
  void Enter(T& member, std::uint64_t sequence) {
    Member& entering = member;
    if (entering.order_ == &waiting_ && entering.turn_.sequence == sequence) return;
    const bool was_absent = entering.order_ != &waiting_;
    Exit(member);
    if (was_absent) entering.turn_.begin = std::max(entering.turn_.begin, now_);
    entering.turn_.sequence = sequence;
    PutIn(waiting_, member);
  }
  // `member` waits no longer, and keeps its debt.
  void Exit(T& member) {
    Member& leaving = member;
    if (leaving.order_ == nullptr) return;
    leaving.node_ = leaving.order_->extract(leaving.turn_);
    leaving.order_ = nullptr;
  }
  // Charges a waiting `member` for what it takes. It waits for its next turn, unless the caller
  // says otherwise.
  void Take(T& member, VirtualTime charge) {
    Exit(member);
    Member& taking = member;
    now_ = std::max(now_, taking.turn_.begin);
    taking.turn_.begin += charge;
    PutIn(waiting_, member);
  }

  // After Take: lets virtual time pass as if each of those that wait, and one that is still to
  // come, had an equal share of the charge. So members that are always new, whose turns would begin
  // before all others, hold up nobody for ever.
  void Pass(VirtualTime charge) {
    passed_ += charge;
    const auto shares = static_cast<VirtualTime>(waiting_.size()) + 1;
    now_ += passed_ / shares;
    passed_ %= shares;
  }

  // `member` has nothing that waits. If it has debts, NextPaid returns it once they are paid;
  // otherwise it is forgotten, and this returns false.
  bool Rest(T& member) {
    Exit(member);
    if (DebtOf(member) == 0) {
      Forget(member);
      return false;
    }
    PutIn(resting_, member);
    return true;
  }
  // Forgets one that rests and has no debt any more; null: there is none.
  T* NextPaid() {
    if (resting_.empty() || resting_.begin()->begin > now_) return nullptr;
    T* const paid = resting_.begin()->member;
    Forget(*paid);
    return paid;
  }
  void Forget(T& member) {
    Exit(member);
    static_cast<Member&>(member).turn_ = {};
  }

  VirtualTime now() const { return now_; }
  // The charge with which `member` is ahead of virtual time.
  VirtualTime DebtOf(const T& member) const {
    return std::max<VirtualTime>(static_cast<const Member&>(member).turn_.begin - now_, 0);
  }

 private:
  void PutIn(Order& order, T& member) {
    Member& put = member;
    put.turn_.member = &member;
    put.node_.value() = put.turn_;
    order.insert(std::move(put.node_));
    put.order_ = &order;
  }

  Order waiting_;
  Order resting_;
  VirtualTime now_ = 0;
  VirtualTime passed_ = 0;  // Charges of which no whole share has passed.
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_TURNS_H_
