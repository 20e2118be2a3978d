#include "client/load/rate_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace normd::load {
namespace {

constexpr std::size_t kMaxValues = 1000;

bool ParseValue(absl::string_view text, double& value) {
  return absl::SimpleAtod(text, &value) && std::isfinite(value) && value > 0;
}

// Parses one value, or a range with a factor or a step. False for other text.
bool AddValues(absl::string_view text, std::vector<double>& values) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits("..", 1));
  double value = 0;
  if (!ParseValue(ends.first, value)) return false;
  if (text.find("..") == absl::string_view::npos) {
    values.push_back(value);
    return true;
  }
  const std::size_t sign = ends.second.find_first_of("*+");
  if (sign == absl::string_view::npos) return false;
  const bool geometric = ends.second[sign] == '*';
  double last = 0;
  double step = 0;
  if (!ParseValue(ends.second.substr(0, sign), last) ||
      !ParseValue(ends.second.substr(sign + 1), step) || (geometric && step <= 1)) {
    return false;
  }
  // A little slack, so that rounding does not lose the last value.
  while (value <= last * (1 + 1e-9) && values.size() <= kMaxValues) {
    values.push_back(value);
    value = geometric ? value * step : value + step;
  }
  return true;
}

}  // namespace

absl::StatusOr<Sweep> ParseSweep(absl::string_view text) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\": ", what,
        "; wanted concurrency or rate and values, such as concurrency=1,2,4, concurrency=1..64*2 "
        "or rate=1000..8000+1000"));
  };
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  Sweep sweep;
  sweep.over_rate = halves.first == "rate";
  if (!sweep.over_rate && halves.first != "concurrency") return wrong("unknown variable");
  for (const absl::string_view part : absl::StrSplit(halves.second, ',')) {
    if (!AddValues(part, sweep.values)) return wrong(absl::StrCat("\"", part, "\" is no value"));
  }
  if (sweep.values.empty() || sweep.values.size() > kMaxValues) {
    return wrong(absl::StrCat("wanted 1 to ", kMaxValues, " values"));
  }
  if (sweep.over_rate) return sweep;
  for (const double value : sweep.values) {
    if (value != std::floor(value) || value > 100000) {
      return wrong(absl::StrCat(value, " is no number of callers from 1 to 100000"));
    }
  }
  return sweep;
}

std::optional<double> RateSearch::Next() const {
  if (over_) return std::nullopt;
  return rate_;
}

void RateSearch::Observe(bool met) {
  if (over_) return;
  if (!met && ++misses_ < options_.tries) return;
  (met ? lower_ : upper_) = rate_;
  misses_ = 0;
  Choose();
}

void RateSearch::Choose() {
  if (upper_ == 0) {
    over_ = lower_ >= options_.most_rate;
    rate_ = std::min(2 * lower_, options_.most_rate);
  } else if (lower_ == 0) {
    over_ = upper_ <= options_.least_rate;
    rate_ = std::max(upper_ / 2, options_.least_rate);
  } else {
    over_ = upper_ <= options_.tolerance * lower_;
    rate_ = std::sqrt(lower_ * upper_);
  }
}

}  // namespace normd::load
