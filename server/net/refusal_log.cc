#include "server/net/refusal_log.h"

#include <chrono>
#include <utility>

#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr Duration kLogInterval = std::chrono::seconds(10);

}  // namespace

void RefusalLog::Record(const std::string& peer, const char* why, TimePoint now) {
  ++refused_;
  if (now < next_line_) return;
  next_line_ = now + kLogInterval;
  spdlog::warn("{} connections refused since the last such line, the last of {}: {}",
               std::exchange(refused_, 0), peer.empty() ? "an unknown peer" : peer, why);
}

}  // namespace normd
