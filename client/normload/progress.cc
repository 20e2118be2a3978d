#include "client/normload/progress.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/normload/units.h"

namespace normd::load {
namespace {

// A block for each of the last intervals, whose height is its value relative to the largest.
template <typename Value>
std::string Sparkline(const std::vector<Interval>& intervals, Value value) {
  constexpr std::size_t kMost = 48;
  constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto begin =
      intervals.end() - static_cast<std::ptrdiff_t>(std::min(kMost, intervals.size()));
  double largest = 0;
  for (auto i = begin; i != intervals.end(); ++i) largest = std::max(largest, value(*i));
  std::string line;
  for (auto i = begin; i != intervals.end(); ++i) {
    const double share = largest > 0 ? value(*i) / largest : 0;
    line += kBlocks[std::min<std::size_t>(static_cast<std::size_t>(share * kBlocks.size()), 7)];
  }
  return line;
}

// "[█████░░░░░]  50 %  "; empty for a share below 0.
std::string Bar(double share) {
  constexpr int kWidth = 30;
  if (share < 0) return "";
  std::string bar = "[";
  for (int i = 0; i < kWidth; ++i) bar += i < share * kWidth ? "█" : "░";
  return absl::StrCat(bar, absl::StrFormat("] %3.0f %%  ", 100 * share));
}

void SetTimes(const Histogram& times, Interval& interval) {
  interval.mean = times.mean();
  interval.p50 = times.Percentile(50);
  interval.p90 = times.Percentile(90);
  interval.p99 = times.Percentile(99);
  interval.p999 = times.Percentile(99.9);
  interval.max = times.max();
}

}  // namespace

double Interval::rate() const { return PerSecond(static_cast<double>(ok), end - begin); }

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
  if (result.elapsed - last_.elapsed >= kShortest) {
    EndInterval(result);
    if (out_ == nullptr) return;
    return Draw(terminal_ ? View(result) : Line(intervals_.back(), result));
  }
  if (out_ == nullptr || result.measured.requests() > 0) return;
  Draw(absl::StrCat("warm-up: ", result.measured.warmup_requests, " responses\n"));
}

void Progress::Finish(const LoadResult& result) {
  // A shorter interval says nothing.
  constexpr Duration kTold = std::chrono::milliseconds(100);
  const Duration since = result.elapsed - last_.elapsed;
  if (since > Duration{0}) EndInterval(result);
  if (out_ == nullptr) return;
  if (terminal_) return Draw(Line(WholeRun(result), result));
  if (since >= kTold) Draw(Line(intervals_.back(), result));
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
}

double Progress::Share(const LoadResult& result) const {
  double share = -1;
  if (goal_.duration != Duration::max() && goal_.duration > Duration{0}) {
    share = Seconds(result.elapsed) / Seconds(goal_.duration);
  }
  if (goal_.requests > 0) {
    share = std::max(share, static_cast<double>(result.measured.requests()) /
                                static_cast<double>(goal_.requests));
  }
  return std::min(share, 1.0);
}

std::string Progress::Line(const Interval& interval, const LoadResult& result) const {
  const double share = Share(result);
  const std::string times =
      interval.ok == 0
          ? "no response with OK"
          : absl::StrFormat("p50 %9.3f ms  p99 %9.3f ms  max %9.3f ms", Milliseconds(interval.p50),
                            Milliseconds(interval.p99), Milliseconds(interval.max));
  return absl::StrCat(
      absl::StrFormat("%7.1f s", Seconds(interval.end)),
      share < 0 ? "" : absl::StrFormat(" %3.0f %%", 100 * share),
      absl::StrFormat("  %9.0f/s  %s  errors %d", interval.rate(), times, result.measured.errors()),
      result.inflight > 0 ? absl::StrCat("  in flight ", result.inflight) : "", "\n");
}

std::string Progress::View(const LoadResult& result) const {
  const Interval& now = intervals_.back();
  const auto row = [&](const char* name, double value, const char* unit, auto of) {
    return absl::StrFormat("  %-4s %12.3f %-2s  %s\n", name, value, unit,
                           Sparkline(intervals_, of));
  };
  const auto time_row = [&](const char* name, Duration Interval::*time) {
    return row(name, Milliseconds(now.*time), "ms",
               [time](const Interval& i) { return Milliseconds(i.*time); });
  };
  return absl::StrCat(Bar(Share(result)),
                      absl::StrFormat("%.1f s, in flight %d, errors %d\n", Seconds(result.elapsed),
                                      result.inflight, result.measured.errors()),
                      row("ok/s", now.rate(), "", [](const Interval& i) { return i.rate(); }),
                      time_row("p50", &Interval::p50), time_row("p99", &Interval::p99),
                      time_row("max", &Interval::max));
}

void Progress::Draw(const std::string& text) {
  if (terminal_) {
    // Moves up to the view's first line and erases the view.
    if (drawn_lines_ > 0) *out_ << "\x1b[" << drawn_lines_ << "A";
    *out_ << "\r\x1b[J";
  }
  drawn_lines_ = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  *out_ << text << std::flush;
}

}  // namespace normd::load
