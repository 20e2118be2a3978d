#include "client/load/backlog.h"

#include <utility>

namespace normd::load {
namespace {

bool HasSpentHalf(const Backlog::Entry& entry, TimePoint now) {
  return entry.deadline != kNever && now - entry.since >= (entry.deadline - entry.since) / 2;
}

}  // namespace

bool Backlog::Enter(Entry& entry) {
  MutexLock lock(mutex_);
  if (out_ < limit_) {
    ++out_;
    return true;
  }
  waiting_.push_back(std::move(entry));
  return false;
}

// Calls behind the oldest with other deadlines are found late when they are to be sent; each is
// checked once, so late ones cost no search.
Backlog::Next Backlog::Leave(TimePoint now) {
  Next next;
  MutexLock lock(mutex_);
  while (!waiting_.empty() && waiting_.front().deadline <= now) {
    next.late.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  while (!waiting_.empty() && !next.send) {
    const bool newest = HasSpentHalf(waiting_.front(), now);
    Entry entry = std::move(newest ? waiting_.back() : waiting_.front());
    newest ? waiting_.pop_back() : waiting_.pop_front();
    if (entry.deadline <= now) {
      next.late.push_back(std::move(entry));
    } else {
      next.send = std::move(entry);
    }
  }
  if (!next.send) --out_;
  return next;
}

}  // namespace normd::load
