#include "server/net/heap_trim.h"

#include <malloc.h>

#include <algorithm>

namespace normd {
namespace {

// Until the memory of a connection that has ended is free: mostly, and when its owner, gRPC, still
// parses what it had read.
constexpr Duration kDelay = std::chrono::seconds(1);
constexpr Duration kLongDelay = std::chrono::seconds(40);
// Between two looks.
constexpr Duration kTrimInterval = std::chrono::seconds(10);
// What a connection must have sent to be worth one.
constexpr std::int64_t kLeastBytes = 64 << 10;

}  // namespace

void HeapTrim::OnEnd(std::int64_t received_bytes, TimePoint now) {
  if (received_bytes < kLeastBytes) return;
  if (soon_ == kNever) soon_ = std::max(now + kDelay, not_before_);
  later_ = now + kLongDelay;
}

bool HeapTrim::Check(TimePoint now) {
  if (now < std::min(soon_, later_)) return false;
  (now >= soon_ ? soon_ : later_) = kNever;
  not_before_ = now + kTrimInterval;
  malloc_trim(0);
  return true;
}

}  // namespace normd
