#include "server/rpc/response_watch.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace normd {
namespace {

Duration PeriodFor(Duration timeout) {
  if (timeout <= Duration(0)) return Duration(0);
  return std::clamp<Duration>(timeout / 8, std::chrono::milliseconds(1), std::chrono::seconds(1));
}

}  // namespace

ResponseWatch::ResponseWatch(Duration timeout) : period_(PeriodFor(timeout)) {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    shard.head.previous_ = shard.head.next_ = &shard.head;
  }
  if (period_ > Duration(0)) thread_.emplace("responses", period_, [this] { Sweep(); });
}

void ResponseWatch::Add(Entry& entry, grpc_call* call, Duration patience) {
  if (period_ <= Duration(0)) return;
  // Each thread has its own shard, so that a call takes a lock that no other core has.
  static thread_local const std::size_t shard_index =
      next_shard_.fetch_add(1, std::memory_order_relaxed) % kShards;
  entry.shard_ = shard_index;
  entry.call_ = call;
  // The current period does not count.
  entry.due_ = now_.load(std::memory_order_relaxed) + patience / period_ + 1;
  Shard& shard = shards_[shard_index];
  MutexLock lock(shard.mutex);
  entry.previous_ = shard.head.previous_;
  entry.next_ = &shard.head;
  entry.previous_->next_ = entry.next_->previous_ = &entry;
}

bool ResponseWatch::Remove(Entry& entry) {
  if (entry.call_ == nullptr) return false;
  MutexLock lock(shards_[entry.shard_].mutex);
  if (entry.given_up_) return true;
  Unlink(entry);
  return false;
}

void ResponseWatch::Unlink(Entry& entry) {
  entry.previous_->next_ = entry.next_;
  entry.next_->previous_ = entry.previous_;
}

void ResponseWatch::Sweep() {
  const std::int64_t now = now_.fetch_add(1, std::memory_order_relaxed) + 1;
  std::vector<grpc_call*> calls;
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    for (Entry* entry = shard.head.next_; entry != &shard.head;) {
      Entry* const next = entry->next_;
      if (entry->due_ < now) {
        Unlink(*entry);
        entry->given_up_ = true;
        // The call's OnDone cannot pass Remove before the lock is released; from then on only the
        // reference keeps the call that is cancelled below.
        grpc_call_ref(entry->call_);
        calls.push_back(entry->call_);
      }
      entry = next;
    }
  }
  for (grpc_call* call : calls) {
    grpc_call_cancel_with_status(call, GRPC_STATUS_CANCELLED,
                                 "the client did not take the response", nullptr);
    grpc_call_unref(call);
  }
}

}  // namespace normd
