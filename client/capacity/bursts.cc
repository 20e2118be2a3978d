#include "client/capacity/bursts.h"

#include <chrono>
#include <cmath>
#include <optional>

#include "client/tensor/random.h"

namespace normd::capacity {
namespace {

class Bursty final : public load::Arrivals {
 public:
  Bursty(double rate_per_s, const Bursts& bursts, std::uint64_t seed)
      : quiet_rate_(rate_per_s / (1 - bursts.share + bursts.factor * bursts.share)),
        burst_rate_(quiet_rate_ * bursts.factor),
        burst_s_(std::chrono::duration<double>(bursts.length).count()),
        quiet_s_(burst_s_ * (1 - bursts.share) / bursts.share),
        random_(seed) {
    change_s_ = Exponential() * quiet_s_;
  }

  std::optional<Duration> Next() override {
    // How much of a process of rate 1 passes until the next.
    double left = Exponential();
    for (;;) {
      const double rate = in_burst_ ? burst_rate_ : quiet_rate_;
      const double until_change = (change_s_ - now_s_) * rate;
      if (left <= until_change) {
        now_s_ += left / rate;
        return Duration(std::llround(1e9 * now_s_));
      }
      left -= until_change;
      now_s_ = change_s_;
      in_burst_ = !in_burst_;
      change_s_ += Exponential() * (in_burst_ ? burst_s_ : quiet_s_);
    }
  }

 private:
  double Exponential() { return -std::log1p(-random_.NextDouble()); }

  const double quiet_rate_;
  const double burst_rate_;
  const double burst_s_;
  const double quiet_s_;
  client::SplitMix64 random_;
  bool in_burst_ = false;
  double now_s_ = 0;
  double change_s_ = 0;
};

}  // namespace

std::unique_ptr<load::Arrivals> BurstyArrivals(double rate_per_s, const Bursts& bursts,
                                               std::uint64_t seed) {
  return std::make_unique<Bursty>(rate_per_s, bursts, seed);
}

}  // namespace normd::capacity
