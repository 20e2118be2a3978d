// What a reader of the report should know before trusting its numbers.

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/normload/report.h"
#include "client/normload/units.h"

namespace normd::load {
namespace {

// Late by more than a hiccup, so that the response time is partly the client's.
bool ClientWasLate(const Measurement& measured) {
  constexpr Duration kHiccup = std::chrono::milliseconds(1);
  const Duration lag = measured.send_lag.Percentile(99);
  return lag > kHiccup && lag > measured.response_time.Percentile(99) / 4;
}

// The most responses later than the objective's limit with which it is still met.
std::int64_t LateAllowed(const Objective& objective, std::int64_t answers) {
  return static_cast<std::int64_t>((100 - objective.percent) / 100 * static_cast<double>(answers));
}

}  // namespace

std::vector<std::string> Notes(const Report& report) {
  const LoadResult& result = report.run().result;
  const Measurement& measured = result.measured;
  std::vector<std::string> notes;
  if (result.unsent > 0) {
    notes.push_back(absl::StrCat(result.unsent,
                                 " requests were still waiting to leave at the end (--max_inflight "
                                 "were unanswered): the server was further behind than the times "
                                 "say"));
  } else if (ClientWasLate(measured)) {
    notes.push_back(absl::StrFormat(
        "the client itself was late: the 99th percentile of its send lag is %.1f ms. Its "
        "processors were busy: give it a machine of its own, or start several",
        Milliseconds(measured.send_lag.Percentile(99))));
  }
  constexpr std::int64_t kEnoughLate = 10;
  const auto& objective = report.options.objective;
  if (objective && measured.ok() > 0 && LateAllowed(*objective, measured.ok()) < kEnoughLate) {
    notes.push_back(absl::StrFormat(
        "of %d responses, the slowest %d decide whether p%g is within the objective: run for "
        "longer "
        "to be sure",
        measured.ok(), LateAllowed(*objective, measured.ok()) + 1, objective->percent));
  }
  constexpr std::int64_t kForP999 = 1000;
  if (measured.ok() > 0 && measured.ok() < kForP999) {
    notes.push_back(absl::StrCat("of ", measured.ok(),
                                 " responses, p99.9 is the longest: run for longer for the tail"));
  }
  return notes;
}

}  // namespace normd::load
