// An objective for the response time, and the share of the work that met it.

#ifndef NORMD_CLIENT_LOAD_OBJECTIVE_H_
#define NORMD_CLIENT_LOAD_OBJECTIVE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/load_run.h"

namespace normd::load {

// "`percent` % of the requests are answered within `limit` of their intended send."
struct Objective {
  double percent = 99;
  Duration limit{0};

  std::string ToString() const;  // "p99 <= 5ms"
  // With fewer responses the percentile is the longest of them, and tells nothing.
  std::int64_t LeastResponses() const;
};

// Parses "p99=5ms". InvalidArgument says what was wanted.
absl::StatusOr<Objective> ParseObjective(absl::string_view text);

struct ObjectiveResult {
  Duration reached{0};      // The response time at the objective's percentile.
  std::int64_t within = 0;  // Responses with OK within the limit: the goodput's share of the work.
  // Whether the percentile is within the limit, no more than `max_error_share` failed, and no
  // intended request was left unsent.
  bool met = false;

  double WithinShare(const LoadResult& result) const;  // As a share of all measured requests.
  double Goodput(const LoadResult& result) const;      // Responses within the limit per second.
};

ObjectiveResult Judge(const Objective& objective, const LoadResult& result, double max_error_share);

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_OBJECTIVE_H_
