// When to send, in an open loop: at times that do not depend on the responses. (A closed loop sends
// when a response has come and needs no arrivals.)

#ifndef NORMD_CLIENT_LOAD_ARRIVALS_H_
#define NORMD_CLIENT_LOAD_ARRIVALS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "client/load/rate_profile.h"

namespace normd::load {

// Not thread-safe.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // The next intended send, as time since the beginning; never before the previous one. nullopt:
  // there are no more. The times depend on nothing else: a late send does not move the later ones.
  virtual std::optional<Duration> Next() = 0;
};

// Sends the k-th request, from 0, when the profile reaches k: at k / rate for a constant one.
std::unique_ptr<Arrivals> ConstantArrivals(RateProfile profile);
std::unique_ptr<Arrivals> ConstantArrivals(double rate_per_s);

// A Poisson process of the profile's rate, as from many independent clients. At a constant rate the
// gaps are independent and exponentially distributed. The same seed gives the same times
// everywhere.
std::unique_ptr<Arrivals> PoissonArrivals(RateProfile profile, std::uint64_t seed);
std::unique_ptr<Arrivals> PoissonArrivals(double rate_per_s, std::uint64_t seed);

// By the command line's name: "constant" or "poisson". InvalidArgument for another.
absl::StatusOr<std::unique_ptr<Arrivals>> MakeArrivals(absl::string_view kind, RateProfile profile,
                                                       std::uint64_t seed);

// At these times, which ascend.
std::unique_ptr<Arrivals> TracedArrivals(std::vector<Duration> times);

// Reads a trace: a time in seconds on each line, of any common origin (offsets, or a log's
// timestamps); the first becomes 0. Skips empty lines and everything after a '#'. InvalidArgument
// names the line for text that is not a number, and for a time before the one above it; a trace
// without times is InvalidArgument too.
absl::StatusOr<std::vector<Duration>> ParseTrace(absl::string_view text);

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_ARRIVALS_H_
