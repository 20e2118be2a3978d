#include "client/load/backlog.h"

#include <utility>

namespace normd::load {
namespace {

bool HasSpentHalf(const Backlog::Entry& entry, TimePoint now) {
  return entry.deadline != kNever && now - entry.since >= (entry.deadline - entry.since) / 2;
}

}  // namespace

Backlog::Entry Backlog::Entry::Of(const Outgoing& outgoing, Duration timeout, TimePoint now,
                                  Sender::Done done) {
  timeout = outgoing.item->entry.timeout.value_or(timeout);
  const TimePoint deadline = timeout < kNever - now ? now + timeout : kNever;
  return {now, deadline, outgoing, std::move(done)};
}

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

void Backlog::End(const Outcome& outcome, Sender::Done done, absl::FunctionRef<void(Entry)> send) {
  Next next = Leave(outcome.received);
  if (next.send) send(*std::move(next.send));
  for (Entry& late : next.late) {
    Outcome unsent;
    unsent.code = absl::StatusCode::kDeadlineExceeded;
    unsent.message = "the deadline passed before the call could be sent";
    unsent.received = outcome.received;
    std::move(late.done)(unsent);
  }
  std::move(done)(outcome);
}

}  // namespace normd::load
