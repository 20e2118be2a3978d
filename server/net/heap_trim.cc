#include "server/net/heap_trim.h"

#include <malloc.h>

#include <algorithm>

namespace normd {
namespace {

// The time after which the memory of an ended connection is mostly free.
constexpr Duration kDelay = std::chrono::seconds(1);
// The interval between looks.
constexpr Duration kTrimInterval = std::chrono::seconds(10);
// The longest time that its owner, gRPC, may continue parsing what it had read.
constexpr Duration kLongestParse = std::chrono::seconds(60);
// The least number of received bytes that makes a connection worth a look.
constexpr std::int64_t kLeastBytes = 64 << 10;

}  // namespace

void HeapTrim::OnEnd(std::int64_t received_bytes, TimePoint now) {
  if (received_bytes < kLeastBytes) return;
  if (next_ == kNever) next_ = std::max(now + kDelay, not_before_);
  until_ = now + kLongestParse;
}

bool HeapTrim::Check(TimePoint now) {
  if (now < next_) return false;
  malloc_trim(0);
  not_before_ = now + kTrimInterval;
  next_ = not_before_ <= until_ ? not_before_ : kNever;
  return true;
}

}  // namespace normd
