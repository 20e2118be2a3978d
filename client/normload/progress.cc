#include "client/normload/progress.h"

#include <chrono>

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
  *out_ << (terminal_ ? "\r" : "")
        << absl::StreamFormat("warm-up: %d answers", result.measured.warmup_requests)
        << (terminal_ ? "" : "\n") << std::flush;
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
  // The spaces cover what a longer line left behind.
  *out_ << (terminal_ ? "\r" : "")
        << absl::StreamFormat("%7.1f s  %9.0f/s  p50 %9.3f ms  p99 %9.3f ms  errors %d",
                              Seconds(interval.end), interval.rate(), Milliseconds(interval.p50),
                              Milliseconds(interval.p99), result.measured.errors())
        << (terminal_ ? "    " : "\n") << std::flush;
}

void Progress::Finish(const LoadResult& result) {
  if (result.elapsed > last_.elapsed) EndInterval(result);
  if (out_ != nullptr && terminal_) *out_ << "\n" << std::flush;
}

}  // namespace normd::load
