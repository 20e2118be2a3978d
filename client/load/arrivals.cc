#include "client/load/arrivals.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/tensor/random.h"

namespace normd::load {
namespace {

constexpr double kNsPerSecond = 1e9;

class Constant final : public Arrivals {
 public:
  explicit Constant(double rate_per_s) : rate_per_s_(rate_per_s) {}

  // From the index and not from the time before: rounding does not add up.
  std::optional<Duration> Next() override {
    const double ns = static_cast<double>(index_++) * kNsPerSecond / rate_per_s_;
    return Duration{std::llround(ns)};
  }

 private:
  const double rate_per_s_;
  std::int64_t index_ = 0;
};

class Poisson final : public Arrivals {
 public:
  Poisson(double rate_per_s, std::uint64_t seed) : rate_per_s_(rate_per_s), random_(seed) {}

  std::optional<Duration> Next() override {
    // NextDouble is below 1, so the logarithm is of a number above 0.
    at_ns_ -= std::log1p(-random_.NextDouble()) * kNsPerSecond / rate_per_s_;
    return Duration{std::llround(at_ns_)};
  }

 private:
  const double rate_per_s_;
  client::SplitMix64 random_;
  double at_ns_ = 0;
};

}  // namespace

std::unique_ptr<Arrivals> ConstantArrivals(double rate_per_s) {
  return std::make_unique<Constant>(rate_per_s);
}

std::unique_ptr<Arrivals> PoissonArrivals(double rate_per_s, std::uint64_t seed) {
  return std::make_unique<Poisson>(rate_per_s, seed);
}

absl::StatusOr<std::unique_ptr<Arrivals>> MakeArrivals(absl::string_view kind, double rate_per_s,
                                                       std::uint64_t seed) {
  if (!std::isfinite(rate_per_s) || rate_per_s <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rate: ", rate_per_s, ", wanted requests per second above 0"));
  }
  if (kind == "constant") return ConstantArrivals(rate_per_s);
  if (kind == "poisson") return PoissonArrivals(rate_per_s, seed);
  return absl::InvalidArgumentError(
      absl::StrCat("arrival: \"", kind, "\", wanted constant or poisson"));
}

}  // namespace normd::load
