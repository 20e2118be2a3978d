#include "client/load/objective.h"

#include <chrono>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace normd::load {

std::string Objective::ToString() const {
  return absl::StrCat("p", percent, " <= ", absl::FormatDuration(absl::FromChrono(limit)));
}

std::int64_t Objective::LeastResponses() const {
  if (percent >= 100) return 1;  // The longest is what is asked for.
  constexpr double kRounding = 1e-6;
  return static_cast<std::int64_t>(std::ceil(100 / (100 - percent) - kRounding));
}

absl::StatusOr<Objective> ParseObjective(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  absl::string_view percent = halves.first;
  Objective objective;
  absl::Duration limit;
  if (!absl::ConsumePrefix(&percent, "p") || !absl::SimpleAtod(percent, &objective.percent) ||
      !(objective.percent > 0 && objective.percent <= 100) ||
      !absl::ParseDuration(halves.second, &limit) || limit <= absl::ZeroDuration() ||
      limit > absl::Hours(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\", wanted a percentile and a time of up to an hour, such as p99=5ms"));
  }
  objective.limit = absl::ToChronoNanoseconds(limit);
  return objective;
}

double ObjectiveResult::WithinShare(const LoadResult& result) const {
  const std::int64_t all = result.measured.requests() + result.unsent;
  return all == 0 ? 0 : static_cast<double>(within) / static_cast<double>(all);
}

double ObjectiveResult::Goodput(const LoadResult& result) const {
  const double seconds = std::chrono::duration<double>(result.elapsed).count();
  return seconds > 0 ? static_cast<double>(within) / seconds : 0;
}

ObjectiveResult Judge(const Objective& objective, const LoadResult& result,
                      double max_error_share) {
  const Histogram& times = result.measured.response_time;
  ObjectiveResult judged;
  judged.reached = times.Percentile(objective.percent);
  judged.within = times.CountAtMost(objective.limit);
  judged.met = times.count() > 0 && judged.reached <= objective.limit &&
               result.measured.error_share() <= max_error_share && result.unsent == 0 &&
               result.reason != StopReason::kObjectiveMissed;
  return judged;
}

}  // namespace normd::load
