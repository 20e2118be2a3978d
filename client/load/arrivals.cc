#include "client/load/arrivals.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/tensor/random.h"

namespace normd::load {
namespace {

class Constant final : public Arrivals {
 public:
  explicit Constant(RateProfile profile) : profile_(std::move(profile)) {}

  // Computed from the index, not from the previous time, so that rounding does not add up.
  std::optional<Duration> Next() override { return profile_.TimeOf(static_cast<double>(index_++)); }

 private:
  const RateProfile profile_;
  std::int64_t index_ = 0;
};

// The times at which a profile reaches the counts of a process of rate 1 form a process of the
// profile's rate.
class Poisson final : public Arrivals {
 public:
  Poisson(RateProfile profile, std::uint64_t seed) : profile_(std::move(profile)), random_(seed) {}

  std::optional<Duration> Next() override {
    // NextDouble is below 1, so the logarithm is of a number above 0.
    count_ -= std::log1p(-random_.NextDouble());
    return profile_.TimeOf(count_);
  }

 private:
  const RateProfile profile_;
  client::SplitMix64 random_;
  double count_ = 0;
};

class Traced final : public Arrivals {
 public:
  explicit Traced(std::vector<Duration> times) : times_(std::move(times)) {}

  std::optional<Duration> Next() override {
    if (next_ == times_.size()) return std::nullopt;
    return times_[next_++];
  }

 private:
  const std::vector<Duration> times_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Arrivals> ConstantArrivals(RateProfile profile) {
  return std::make_unique<Constant>(std::move(profile));
}

std::unique_ptr<Arrivals> ConstantArrivals(double rate_per_s) {
  return ConstantArrivals(RateProfile::Constant(rate_per_s));
}

std::unique_ptr<Arrivals> PoissonArrivals(RateProfile profile, std::uint64_t seed) {
  return std::make_unique<Poisson>(std::move(profile), seed);
}

std::unique_ptr<Arrivals> PoissonArrivals(double rate_per_s, std::uint64_t seed) {
  return PoissonArrivals(RateProfile::Constant(rate_per_s), seed);
}

absl::StatusOr<std::unique_ptr<Arrivals>> MakeArrivals(absl::string_view kind, RateProfile profile,
                                                       std::uint64_t seed) {
  if (kind == "constant") return ConstantArrivals(std::move(profile));
  if (kind == "poisson") return PoissonArrivals(std::move(profile), seed);
  return absl::InvalidArgumentError(
      absl::StrCat("arrival: \"", kind, "\", wanted constant or poisson"));
}

std::unique_ptr<Arrivals> TracedArrivals(std::vector<Duration> times) {
  return std::make_unique<Traced>(std::move(times));
}

absl::StatusOr<std::vector<Duration>> ParseTrace(absl::string_view text) {
  std::vector<Duration> times;
  double first = 0;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view field = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (field.empty()) continue;
    double seconds = 0;
    // A double resolves the microseconds of a timestamp since 1970.
    if (!absl::SimpleAtod(field, &seconds) || !(std::fabs(seconds) < 1e12)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": \"", field.substr(0, 40), "\", wanted seconds"));
    }
    if (times.empty()) first = seconds;
    const Duration time{std::llround(std::min(seconds - first, 1e9) * 1e9)};
    if (time < (times.empty() ? Duration{0} : times.back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", field.substr(0, 40), " is before the line above"));
    }
    times.push_back(time);
  }
  if (times.empty()) return absl::InvalidArgumentError("no times, wanted one on each line");
  return times;
}

}  // namespace normd::load
