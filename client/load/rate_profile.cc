#include "client/load/rate_profile.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace normd::load {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kMaxRate = 1e8;

double Seconds(Duration length) {
  return length == Duration::max() ? std::numeric_limits<double>::infinity()
                                   : std::chrono::duration<double>(length).count();
}

double CountOf(const RateProfile::Segment& s) {
  const double mean = (s.begin_rate_per_s + s.end_rate_per_s) / 2;
  return mean > 0 ? mean * Seconds(s.length) : 0;
}

// The time at which a segment reaches `count`: the root of a*t + (b-a)*t^2/(2*length) = count, in
// the form that neither divides by a slope of zero nor cancels.
double SecondsAt(const RateProfile::Segment& s, double count) {
  const double a = s.begin_rate_per_s;
  const double slope = (s.end_rate_per_s - a) / Seconds(s.length);
  const double root = std::sqrt(std::max(0.0, a * a + 2 * slope * count));
  return count == 0 ? 0 : 2 * count / (a + root);
}

bool ParseRate(absl::string_view text, double& rate) {
  return absl::SimpleAtod(text, &rate) && std::isfinite(rate) && rate >= 0 && rate <= kMaxRate;
}

}  // namespace

RateProfile::RateProfile(std::vector<Segment> segments) : segments_(std::move(segments)) {
  double count = 0;
  for (const Segment& segment : segments_) counts_.push_back(count += CountOf(segment));
}

RateProfile RateProfile::Constant(double rate_per_s) {
  return RateProfile({{rate_per_s, rate_per_s, Duration::max()}});
}

absl::StatusOr<RateProfile> RateProfile::Parse(absl::string_view text) {
  const auto wrong = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "profile: ", what,
        "; wanted RATE@TIME for a step and RATE..RATE@TIME for a ramp, comma between several, such "
        "as 1000@10s,1000..4000@30s"));
  };
  std::vector<Segment> segments;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(part, absl::MaxSplits('@', 1));
    const std::pair<absl::string_view, absl::string_view> rates =
        absl::StrSplit(halves.first, absl::MaxSplits("..", 1));
    const bool ramp = halves.first.find("..") != absl::string_view::npos;
    Segment segment;
    absl::Duration length;
    if (!ParseRate(rates.first, segment.begin_rate_per_s) ||
        !ParseRate(ramp ? rates.second : rates.first, segment.end_rate_per_s)) {
      return wrong(absl::StrCat("\"", part, "\" has no rate from 0 to 1e8"));
    }
    if (!absl::ParseDuration(halves.second, &length) || length <= absl::ZeroDuration() ||
        length > absl::Hours(1000)) {
      return wrong(absl::StrCat("\"", part, "\" has no time above 0 and up to 1000h"));
    }
    segment.length = absl::ToChronoNanoseconds(length);
    segments.push_back(segment);
  }
  RateProfile profile(std::move(segments));
  if (profile.counts_.back() < 1) return wrong(absl::StrCat("\"", text, "\" sends nothing"));
  return profile;
}

RateProfile RateProfile::WithLead(Duration lead) const {
  std::vector<Segment> segments = segments_;
  const double rate = segments.front().begin_rate_per_s;
  if (lead > Duration{0}) segments.insert(segments.begin(), {rate, rate, lead});
  return RateProfile(std::move(segments));
}

std::optional<Duration> RateProfile::TimeOf(double count) const {
  // Ends are exclusive: a request at a segment's very end is the next segment's first.
  const auto it = std::upper_bound(counts_.begin(), counts_.end(), count);
  if (it == counts_.end()) return std::nullopt;
  const auto index = static_cast<std::size_t>(it - counts_.begin());
  Duration begin{0};
  for (std::size_t i = 0; i < index; ++i) begin += segments_[i].length;
  const double before = index == 0 ? 0 : counts_[index - 1];
  const double seconds = SecondsAt(segments_[index], count - before);
  return begin + Duration{std::llround(seconds * kNsPerSecond)};
}

}  // namespace normd::load
