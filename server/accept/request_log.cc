#include "server/accept/request_log.h"

#include <array>
#include <exception>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// In the order of Stage.
constexpr std::array<const char*, kStageCount> kStageNames = {
    "decode", "queue", "gather", "copy_in", "compute", "copy_out", "encode"};
constexpr std::size_t kMostErrorBytes = 500;

std::string RandomPrefix() {
  std::random_device random;
  return absl::StrFormat("normd-%08x%08x-", random(), random());
}

}  // namespace

RequestLog::RequestLog(const RequestLogOptions& options, WriteLine write_line)
    : options_(options), write_line_(std::move(write_line)), id_prefix_(RandomPrefix()) {}

RequestLog::Reason RequestLog::Pick(Duration duration) {
  // Relaxed: a count that orders nothing.
  const bool sampled =
      options_.sample_every > 0 &&
      requests_.fetch_add(1, std::memory_order_relaxed) % options_.sample_every == 0;
  if (options_.slow_threshold > Duration(0) && duration >= options_.slow_threshold) {
    return Reason::kSlow;
  }
  return sampled ? Reason::kSample : Reason::kNone;
}

void RequestLog::Write(Reason reason, const RequestRecord& record) noexcept {
  try {
    nlohmann::ordered_json line;
    line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
    line["reason"] = reason == Reason::kSlow ? "slow" : "sample";
    line["request_id"] = !record.ids.request_id.empty()
                             ? record.ids.request_id
                             : absl::StrCat(id_prefix_, next_id_.fetch_add(1));
    if (!record.ids.traceparent.empty()) line["trace_id"] = std::string(record.ids.trace_id());
    line["method"] = std::string(record.method);
    line["model"] = std::string(record.model);
    line["version"] = record.version;
    line["code"] = absl::StatusCodeToString(record.status.code());
    if (!record.status.message().empty()) {
      line["error"] = std::string(record.status.message().substr(0, kMostErrorBytes));
    }
    line["duration_ns"] = record.duration.count();
    nlohmann::ordered_json& stages = line["stages_ns"];
    for (std::size_t i = 0; i < kStageCount; ++i) {
      stages[kStageNames[i]] = record.stages[static_cast<Stage>(i)].count();
    }
    line["batch"] = {{"id", record.batch.id},
                     {"requests", record.batch.requests},
                     {"bytes", record.batch.bytes}};
    line["lane"] = record.batch.lane;
    line["peer"] = std::string(record.peer);
    if (!record.identity.empty()) line["identity"] = std::string(record.identity);
    line["bytes"] = record.bytes;
    // Printable ASCII, whatever is in it. Replaces bytes that are not UTF-8; the default would
    // throw.
    write_line_(line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace));
  } catch (const std::exception& error) {
    spdlog::warn("request log: a line is missing: {}", error.what());
  }
}

}  // namespace normd
