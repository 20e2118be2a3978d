// The progress of a run.

#ifndef NORMD_CLIENT_NORMLOAD_PROGRESS_H_
#define NORMD_CLIENT_NORMLOAD_PROGRESS_H_

#include <ostream>
#include <string>
#include <vector>

#include "client/load/load_run.h"

namespace normd::load {

// One stretch of a run, between two calls of Look.
struct Interval {
  Duration begin{0};  // Since the end of the warm-up.
  Duration end{0};
  std::int64_t ok = 0;
  std::int64_t errors = 0;
  // The mean response time.
  Duration mean{0};
  Duration p50{0};
  Duration p90{0};
  Duration p99{0};
  Duration p999{0};
  Duration max{0};

  double rate() const;  // Responses with OK per second.
};

// The run so far as one interval.
Interval WholeRun(const LoadResult& result);

// Keeps the intervals for the report, and shows each: on a terminal as a redrawn view of a few
// lines, elsewhere as one line below the other. Not thread-safe.
class Progress {
 public:
  // `out` null: prints nothing. Borrowed. `goal` gives the share of the run that is over.
  Progress(std::ostream* out, bool terminal, const StopOptions& goal = {})
      : out_(out), terminal_(terminal), goal_(goal) {}

  // Takes a snapshot. Ends an interval, unless it would be shorter than half a second.
  void Look(const LoadResult& result);
  // Takes the last snapshot: ends the last interval, however short. On a terminal a line for the
  // whole run replaces the view.
  void Finish(const LoadResult& result);

  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  void EndInterval(const LoadResult& result);
  // The share of the run that is over, 0 to 1; below 0 if the run has no end of its own.
  double Share(const LoadResult& result) const;
  // `interval` on one line.
  std::string Line(const Interval& interval, const LoadResult& result) const;
  // The view of the last interval and those before it.
  std::string View(const LoadResult& result) const;
  // Replaces the last view by the text, which ends with a newline.
  void Draw(const std::string& text);

  std::ostream* const out_;
  const bool terminal_;
  const StopOptions goal_;
  LoadResult last_;
  std::vector<Interval> intervals_;
  int drawn_lines_ = 0;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PROGRESS_H_
