// How many requests a second are wanted, over time: steps and ramps.

#ifndef NORMD_CLIENT_LOAD_RATE_PROFILE_H_
#define NORMD_CLIENT_LOAD_RATE_PROFILE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace normd::load {

// Piecewise linear. Immutable; thread-safe.
class RateProfile {
 public:
  // The rate goes from the one to the other in a straight line.
  struct Segment {
    double begin_rate_per_s = 0;
    double end_rate_per_s = 0;
    Duration length{0};  // Duration::max(): for ever.
  };

  // For ever. `rate_per_s` > 0 and finite.
  static RateProfile Constant(double rate_per_s);
  // Steps and ramps in turn: "1000@10s,1000..4000@30s,0@5s,4000@10s". InvalidArgument names the
  // part and what was wanted; so does a profile that never asks for a request.
  static absl::StatusOr<RateProfile> Parse(absl::string_view text);

  // The same after `lead` at the profile's first rate.
  RateProfile WithLead(Duration lead) const;

  // When so many requests were asked for since the beginning; nullopt: never. Grows with `count`.
  std::optional<Duration> TimeOf(double count) const;

  const std::vector<Segment>& segments() const { return segments_; }

 private:
  explicit RateProfile(std::vector<Segment> segments);

  std::vector<Segment> segments_;
  std::vector<double> counts_;  // Asked for up to the end of each segment.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_RATE_PROFILE_H_
