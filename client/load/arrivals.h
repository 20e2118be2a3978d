// When to send, in an open loop: at times that do not depend on the answers. (A closed loop sends
// when an answer has come and needs no arrivals.)

#ifndef NORMD_CLIENT_LOAD_ARRIVALS_H_
#define NORMD_CLIENT_LOAD_ARRIVALS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/clock.h"

namespace normd::load {

// Not thread-safe.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // The next intended send, as time since the beginning; never before the one before. nullopt:
  // there are no more. The times depend on nothing else: a late send does not move those after it.
  virtual std::optional<Duration> Next() = 0;
};

// The k-th request, from 0, at k / rate. `rate_per_s` > 0.
std::unique_ptr<Arrivals> ConstantArrivals(double rate_per_s);

// Independent, exponentially distributed gaps with the mean 1 / rate: what many independent clients
// give. The same seed gives the same times everywhere.
std::unique_ptr<Arrivals> PoissonArrivals(double rate_per_s, std::uint64_t seed);

// By the name that the command line uses: "constant" or "poisson". InvalidArgument for another name
// and for a rate that is not above zero and finite.
absl::StatusOr<std::unique_ptr<Arrivals>> MakeArrivals(absl::string_view kind, double rate_per_s,
                                                       std::uint64_t seed);

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_ARRIVALS_H_
