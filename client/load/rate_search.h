// Which load to try next: the points of a sweep, and the search for the highest rate that still
// meets an objective. Pure: the caller runs the load and reports the result.

#ifndef NORMD_CLIENT_LOAD_RATE_SEARCH_H_
#define NORMD_CLIENT_LOAD_RATE_SEARCH_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd::load {

struct Sweep {
  bool over_rate = false;  // True: an open loop's rate; false: the callers of a closed loop.
  std::vector<double> values;
};

// "concurrency=1,2,4,8" or "rate=500,1000"; a value can be a range, "1..64*2" (1, 2, 4 ... 64) or
// "1000..8000+1000". InvalidArgument says what was wanted; also for more than 1000 values.
absl::StatusOr<Sweep> ParseSweep(absl::string_view text);

struct RateSearchOptions {
  double start_rate = 100;
  double least_rate = 0.1;
  double most_rate = 1e6;
  // The search ends when the highest rate that met the objective and the lowest that missed it
  // differ by no more than this factor.
  double tolerance = 1.02;
  // A rate misses the objective when it has done so this many times in a row: one hiccup of a
  // shared machine must not halve the result.
  int tries = 2;
};

// Doubles (or halves) from the start until the answer is enclosed, then bisects by the geometric
// mean. Not thread-safe.
class RateSearch {
 public:
  explicit RateSearch(const RateSearchOptions& options)
      : options_(options), rate_(options.start_rate) {}

  // The rate to try; nullopt: the search is over.
  std::optional<double> Next() const;
  // Reports whether that rate met the objective.
  void Observe(bool met);

  // The highest that met it; 0: none did.
  double best() const { return lower_; }

 private:
  void Choose();

  const RateSearchOptions options_;
  double rate_;
  double lower_ = 0;  // The highest that met it, 0 before there is one.
  double upper_ = 0;  // The lowest that missed it, 0 before there is one.
  int misses_ = 0;    // At `rate_`.
  bool over_ = false;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_RATE_SEARCH_H_
