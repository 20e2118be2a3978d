// How often somebody may call.

#ifndef NORMD_SERVER_IDENTITY_RATE_LIMIT_H_
#define NORMD_SERVER_IDENTITY_RATE_LIMIT_H_

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace normd {

struct Rate {
  double per_second = 0;   // 0: no limit.
  std::int64_t burst = 0;  // At least 1 where there is a limit.
};

// A token bucket of `burst` tokens, which refills at the rate; full at first. Kept as the time at
// which it will be full again (the generic cell rate algorithm of ATM Forum TM 4.0), so that one
// atomic number is all of it. Thread-safe, lock-free. The rate may differ from call to call, as
// policies do.
class RateLimit {
 public:
  // Takes a token and returns 0, or takes none and returns how long it is until there is one. A
  // refusal costs nothing, so whoever goes on trying is not kept out for longer.
  Duration Take(const Rate& rate, TimePoint now);

 private:
  // Relaxed order suffices: it guards nothing but itself.
  std::atomic<std::int64_t> full_at_ns_{0};
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_RATE_LIMIT_H_
