#include "client/normload/progress.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace normd::load {
namespace {

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
double Milliseconds(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

void SetTimes(const Histogram& times, Interval& interval) {
  interval.mean = times.mean();
  interval.p50 = times.Percentile(50);
  interval.p90 = times.Percentile(90);
  interval.p99 = times.Percentile(99);
  interval.p999 = times.Percentile(99.9);
  interval.max = times.max();
}

}  // namespace

double Interval::rate() const {
  const double seconds = Seconds(end - begin);
  return seconds > 0 ? static_cast<double>(ok) / seconds : 0;
}

Interval WholeRun(const LoadResult& result) {
  Interval whole;
  whole.end = result.elapsed;
  whole.ok = result.measured.ok();
  whole.errors = result.measured.errors();
  SetTimes(result.measured.response_time, whole);
  return whole;
}

void Progress::Look(const LoadResult& result) {
  constexpr Duration kShortest = std::chrono::milliseconds(500);
  if (result.elapsed - last_.elapsed >= kShortest) return EndInterval(result);
  if (out_ == nullptr || result.measured.requests() > 0) return;
  Print(absl::StrCat("warm-up: ", result.measured.warmup_requests, " answers"));
}

std::string Progress::Share(const LoadResult& result) const {
  double share = -1;
  if (goal_.duration != Duration::max() && goal_.duration > Duration{0}) {
    share = Seconds(result.elapsed) / Seconds(goal_.duration);
  }
  if (goal_.requests > 0) {
    share = std::max(share, static_cast<double>(result.measured.requests()) /
                                static_cast<double>(goal_.requests));
  }
  return share < 0 ? "" : absl::StrFormat(" %3.0f %%", 100 * std::min(share, 1.0));
}

void Progress::Print(const std::string& line) {
  if (!terminal_) {
    *out_ << line << "\n" << std::flush;
    return;
  }
  // The terminal erases what a longer line left behind.
  *out_ << "\r" << line << "\x1b[K" << std::flush;
}

void Progress::EndInterval(const LoadResult& result) {
  const Histogram recent = result.measured.response_time.Since(last_.measured.response_time);
  Interval interval;
  interval.begin = last_.elapsed;
  interval.end = result.elapsed;
  interval.ok = result.measured.ok() - last_.measured.ok();
  interval.errors = result.measured.errors() - last_.measured.errors();
  SetTimes(recent, interval);
  intervals_.push_back(interval);
  last_ = result;
  if (out_ == nullptr) return;
  Print(absl::StrCat(
      absl::StrFormat("%7.1f s%s  %9.0f/s  p50 %9.3f ms  p99 %9.3f ms  max %9.3f ms  errors %d",
                      Seconds(interval.end), Share(result), interval.rate(),
                      Milliseconds(interval.p50), Milliseconds(interval.p99),
                      Milliseconds(interval.max), result.measured.errors()),
      result.inflight > 0 ? absl::StrCat("  in flight ", result.inflight) : ""));
}

void Progress::Finish(const LoadResult& result) {
  if (result.elapsed > last_.elapsed) EndInterval(result);
  if (out_ != nullptr && terminal_) *out_ << "\n" << std::flush;
}

}  // namespace normd::load
