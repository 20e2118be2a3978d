// What a run says of itself while it goes on.

#ifndef NORMD_CLIENT_NORMLOAD_PROGRESS_H_
#define NORMD_CLIENT_NORMLOAD_PROGRESS_H_

#include <ostream>
#include <string>
#include <vector>

#include "client/load/load_run.h"

namespace normd::load {

// One stretch of a run, between two looks at it.
struct Interval {
  Duration begin{0};  // Since the end of the warm-up.
  Duration end{0};
  std::int64_t ok = 0;
  std::int64_t errors = 0;
  // Of the response time.
  Duration mean{0};
  Duration p50{0};
  Duration p90{0};
  Duration p99{0};
  Duration p999{0};
  Duration max{0};

  double rate() const;  // Answers with OK per second.
};

// The run so far as one interval.
Interval WholeRun(const LoadResult& result);

// Keeps the intervals for the report, and prints a line for each: over and over the same one on a
// terminal, one below the other elsewhere. Not thread-safe.
class Progress {
 public:
  // `out` null: prints nothing. Borrowed. `goal` says what share of the run is over.
  Progress(std::ostream* out, bool terminal, const StopOptions& goal = {})
      : out_(out), terminal_(terminal), goal_(goal) {}

  // A look at the run. Ends an interval, unless it would be shorter than half a second.
  void Look(const LoadResult& result);
  // The last look: ends the last interval, however short, and the line on a terminal.
  void Finish(const LoadResult& result);

  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  void EndInterval(const LoadResult& result);
  // " 40 %"; empty where the run has no end of its own.
  std::string Share(const LoadResult& result) const;
  void Print(const std::string& line);

  std::ostream* const out_;
  const bool terminal_;
  const StopOptions goal_;
  LoadResult last_;
  std::vector<Interval> intervals_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PROGRESS_H_
