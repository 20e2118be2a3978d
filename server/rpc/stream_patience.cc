#include "server/rpc/stream_patience.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

std::int64_t Millis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

TimePoint StreamPatience::CheckAt() const {
  return std::min(last_progress_, write_since_) + timeout_;
}

void StreamPatience::OnTaken(TimePoint now) {
  write_since_ = kNever;
  last_progress_ = now;
}

void StreamPatience::BeginOverdraft(TimePoint now, Duration patience) {
  overdraft_until_ = now + patience;
  overdraft_patience_ = patience;
}

absl::Status StreamPatience::Check(TimePoint now, bool servers_turn) {
  if (write_since_ != kNever && now - write_since_ >= timeout_) {
    return absl::DeadlineExceededError(
        absl::StrCat("stream: the client took nothing for ", Millis(timeout_), " ms"));
  }
  if (servers_turn) {
    last_progress_ = now;
  } else if (now - last_progress_ >= timeout_) {
    return absl::DeadlineExceededError(
        absl::StrCat("stream: the client sent and took nothing for ", Millis(timeout_), " ms"));
  }
  if (now < overdraft_until_) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "stream: the server's budget is taken, and the client did not send a row and take its result "
      "within ",
      Millis(overdraft_patience_), " ms"));
}

}  // namespace normd
