// The progress of a long transfer, on one line of a terminal.

#ifndef NORMD_CLIENT_NORMCTL_PROGRESS_BAR_H_
#define NORMD_CLIENT_NORMCTL_PROGRESS_BAR_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "base/clock.h"

namespace normd::client {

// "[=======>            ]  37%  2.78 of 7.52 GB  1.31 GB/s  3.6 s left"
std::string ProgressLine(std::int64_t done_bytes, std::int64_t total_bytes, Duration elapsed);

// Not thread-safe.
class ProgressBar {
 public:
  // `out` null: draws nothing. Both are borrowed.
  ProgressBar(std::ostream* out, const Clock& clock)
      : out_(out), clock_(clock), begin_(clock.Now()) {}
  // Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws, but at most ten times a second.
  void Update(std::int64_t done_bytes, std::int64_t total_bytes);

 private:
  std::ostream* const out_;
  const Clock& clock_;
  const TimePoint begin_;
  TimePoint drawn_{};
  std::size_t width_ = 0;  // The width of the line on the screen.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_PROGRESS_BAR_H_
