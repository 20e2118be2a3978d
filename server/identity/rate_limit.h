// A limit on the rate of calls.

#ifndef NORMD_SERVER_IDENTITY_RATE_LIMIT_H_
#define NORMD_SERVER_IDENTITY_RATE_LIMIT_H_

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace normd {

struct Rate {
  double per_second = 0;   // 0: no limit.
  std::int64_t burst = 0;  // At least 1 if there is a limit.
};

// A token bucket of `burst` tokens, which refills at the rate; full at first. It is stored as the
// time at which it will be full again (the generic cell rate algorithm of ATM Forum TM 4.0), in one
// atomic number. Thread-safe, lock-free. The rate may differ between calls, as policies do.
class RateLimit {
 public:
  // Takes a token and returns 0, or takes none and returns the time until there is one. A refusal
  // costs nothing, so further attempts do not extend the wait.
  Duration Take(const Rate& rate, TimePoint now);

 private:
  // Relaxed order suffices: it guards nothing but itself.
  std::atomic<std::int64_t> full_at_ns_{0};
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_RATE_LIMIT_H_
