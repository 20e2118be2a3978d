// The wanted number of requests per second over time: steps and ramps.

#ifndef NORMD_CLIENT_LOAD_RATE_PROFILE_H_
#define NORMD_CLIENT_LOAD_RATE_PROFILE_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace normd::load {

// Piecewise linear. Immutable; thread-safe.
class RateProfile {
 public:
  // The rate changes linearly from the first to the second.
  struct Segment {
    double begin_rate_per_s = 0;
    double end_rate_per_s = 0;
    Duration length{0};  // Duration::max(): for ever.
  };

  // Unlimited in time. `rate_per_s` > 0 and finite.
  static RateProfile Constant(double rate_per_s);
  // Parses alternating steps and ramps: "1000@10s,1000..4000@30s,0@5s,4000@10s". InvalidArgument
  // names the part and what was wanted, also for a profile without any request.
  static absl::StatusOr<RateProfile> Parse(absl::string_view text);

  // The same after `lead` at the profile's first rate.
  RateProfile WithLead(Duration lead) const;

  // The time at which `count` requests have been due since the beginning; nullopt: never. Grows
  // with `count`.
  std::optional<Duration> TimeOf(double count) const;

  const std::vector<Segment>& segments() const { return segments_; }

 private:
  explicit RateProfile(std::vector<Segment> segments);

  std::vector<Segment> segments_;
  std::vector<double> counts_;  // Requests due up to the end of each segment.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_RATE_PROFILE_H_
