#include "tests/support/staged_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/mixed_runs.h"
#include "kernels/reference.h"

namespace normd::norm::testing {
namespace {

constexpr double kFloatRounding = 0x1p-24;
// The error that float32 may add to a scale and to the scaled value.
constexpr double kScaleError = 4 * kFloatRounding;

// The relative rounding error of the accumulation type; for float64 with the reference's, whose
// sums are plain.
double Rounding(DType dtype) { return dtype == DType::kFloat64 ? 128 * 0x1p-53 : kFloatRounding; }

// The maximum, relative to a number.
double UnitOf16Bits(DType dtype) {
  if (dtype == DType::kFloat16) return 0x1p-10;
  return dtype == DType::kBFloat16 ? 0x1p-7 : 0;
}

double RoundTo(DType dtype, double value) {
  double storage = 0;
  StoreElement(dtype, &storage, 0, value);
  return LoadElement(dtype, &storage, 0);
}

// The distance of the type's numbers around a value.
double Spacing(DType dtype, double value) {
  if (!std::isfinite(value) || value == 0) return 0;
  int mantissa = 52, least = -1022;
  switch (dtype) {
    case DType::kFloat32: mantissa = 23, least = -126; break;
    case DType::kFloat16: mantissa = 10, least = -14; break;
    case DType::kBFloat16: mantissa = 7, least = -126; break;
    default: break;
  }
  return std::ldexp(1, std::max(std::ilogb(value), least) - mantissa);
}

double Quantized(Quantization quantization, double value) {
  std::uint8_t code = 0;
  StoreQuantized(quantization, &code, 0, value);
  return LoadQuantized(quantization, &code, 0);
}

double Magnitude(const ParamVector& param, std::int64_t index, double absent) {
  return param.data == nullptr ? absent : std::fabs(LoadElement(param.dtype, param.data, index));
}

// What a second tensor's element multiplies with, unless it is added.
double FactorOf(Combine combine, double other) {
  if (combine == Combine::kMultiply) return other;
  const double sigmoid = 1 / (1 + std::exp(-other));
  return combine == Combine::kMultiplySilu ? other * sigmoid : sigmoid;
}

bool IsBetween(double got, double low, double high) { return low <= got && got <= high; }

std::string Wrong(const char* name, std::int64_t index, double got, double want, double error) {
  char text[200];
  std::snprintf(text, sizeof(text), "%s[%lld]: %.9g, wanted %.9g within %.2g", name,
                static_cast<long long>(index), got, want, error);
  return text;
}

class Check {
 public:
  Check(const NormSpec& spec, const NormParams& params, const StagedSegment& segment,
        const StagedBounds& bounds)
      : spec_(spec),
        params_(params),
        segment_(segment),
        reference_(segment.Reference()),
        rounding_(Rounding(spec.dtype)),
        units_(bounds.roundings * Rounding(spec.dtype)),
        unit16_(UnitOf16Bits(spec.dtype)),
        large_mean_(bounds.large_mean),
        of_magnitude_(bounds.of_magnitude) {
    FindPlaces();
  }

  std::string Run() {
    if (segment_.elements() == 0) return "";
    std::string wrong = CheckSum();
    if (wrong.empty()) wrong = Compute();
    if (wrong.empty()) wrong = CheckStatistics();
    if (wrong.empty()) wrong = CheckScales();
    if (wrong.empty()) wrong = CheckY();
    return wrong;
  }

 private:
  using S = StagedSegment;
  // What an element of a sample belongs to: a channel, a position, and of the sample's rows and
  // scales one.
  struct Place {
    std::int64_t channel;
    std::int64_t position;
    std::int64_t row;
    std::int64_t scale;
  };

  bool is_sum() const { return spec_.residual || params_.input_bias.data != nullptr; }
  // Whether the accumulation type rounds more than the sum itself.
  bool rounds_twice() const { return spec_.gate || params_.input_bias.data != nullptr; }
  bool is_half() const { return SizeOf(spec_.dtype) == 2; }

  // Once for each place in a sample: each of its elements is asked for several times.
  void FindPlaces() {
    const std::int64_t spatial = segment_.spatial(), group = spec_.channels / spec_.groups;
    const MixedRuns places = {spec_.channel_runs, segment_.spatial_runs()};
    places_.resize(static_cast<std::size_t>(spec_.channels * spatial));
    std::vector<std::int64_t> of_positions(static_cast<std::size_t>(spatial));
    const bool mixed = spec_.layout == Layout::kMixedRuns;
    const bool first = spec_.layout == Layout::kChannelsFirst;
    for (std::int64_t s = 0; s < spatial; ++s) {
      of_positions[static_cast<std::size_t>(s)] =
          mixed ? places.OfPosition(s) : s * (first ? 1 : spec_.channels);
    }
    const std::int64_t length = RowLength(spec_, spatial);
    const bool rows = spec_.quantization_scale == QuantizationScale::kRow;
    const std::int64_t block = rows ? std::max<std::int64_t>(length, 1) : kQuantizationBlock;
    const std::int64_t scales = (length + block - 1) / block;  // A row's.
    for (std::int64_t c = 0; c < spec_.channels; ++c) {
      const std::int64_t of_channel = mixed ? places.OfChannel(c) : c * (first ? spatial : 1);
      for (std::int64_t s = 0; s < spatial; ++s) {
        const bool groups = spec_.rows == Rows::kGroup;
        const std::int64_t row = groups ? c / group : c / group * spatial + s;
        const std::int64_t at = groups ? c % group * spatial + s : c % group;
        places_[static_cast<std::size_t>(of_channel + of_positions[static_cast<std::size_t>(s)])] =
            {c, s, row, row * scales + at / block};
      }
    }
    rows_ = RowsOfSample(spec_, spatial);
    scales_ = rows_ * scales;
  }
  std::int64_t Sample(std::int64_t i) const { return i / (spec_.channels * segment_.spatial()); }
  const Place& PlaceOf(std::int64_t i) const {
    return places_[static_cast<std::size_t>(i) % places_.size()];
  }
  // The index of an element's row in mean_, and of its scale in scale_out.
  std::int64_t Row(std::int64_t i) const { return Sample(i) * rows_ + PlaceOf(i).row; }
  std::int64_t Scale(std::int64_t i) const { return Sample(i) * scales_ + PlaceOf(i).scale; }
  // Calls visit(i, n, place) for each element i, of sample n, in memory's order.
  template <typename Visit>
  void ForElements(const Visit& visit) const {
    std::size_t i = 0;
    for (std::int64_t n = 0; n < segment_.samples(); ++n) {
      for (const Place& place : places_) visit(i++, n, place);
    }
  }

  std::string CheckSum() const {
    if (!spec_.residual_out) return "";
    for (std::int64_t i = 0; i < segment_.elements(); ++i) {
      const double got = segment_.OutputAt(S::kResidualOut, i);
      const double want = NormalizedElement(spec_, params_, reference_, i);
      if (got == want || (std::isnan(got) && std::isnan(want))) continue;
      // Each term and product may be rounded before the sum is.
      const std::int64_t c = PlaceOf(i).channel;
      double terms = std::fabs(segment_.InputAt(S::kX, i)) + Magnitude(params_.input_bias, c, 0);
      if (spec_.gate) {
        terms *= std::fabs(segment_.InputAt(S::kGate, Sample(i) * spec_.channels + c));
      }
      if (spec_.residual) terms += std::fabs(segment_.InputAt(S::kResidual, i));
      const double error = rounds_twice() ? 3 * rounding_ * terms + Spacing(spec_.dtype, want) : 0;
      if (!(std::fabs(got - want) <= error)) return Wrong("residual_out", i, got, want, error);
    }
    return "";
  }

  // The reference's y, and the normalized values before gamma.
  std::string Compute() {
    NormSpec spec = spec_;
    NormParams params = params_;
    Segment segment = reference_;
    segment.params = nullptr;
    if (spec.residual_out) {  // From the written v.
      segment.x = segment_.output(S::kResidualOut);
      segment.residual = segment.gate = nullptr;
      spec.residual = spec.residual_out = spec.gate = false;
      params.input_bias = {};
    }
    const auto elements = static_cast<std::size_t>(segment_.elements());
    const auto rows =
        static_cast<std::size_t>(segment_.samples() * RowsOfSample(spec_, segment_.spatial()));
    y_.resize(elements);
    u_.resize(elements);
    mean_.resize(rows);
    rstd_.resize(rows);
    Status status = NormalizeReference(spec, params, segment,
                                       {y_.data(), mean_.data(), rstd_.data(), u_.data()});
    if (!status.ok()) return "reference: " + status.message();
    FindRowErrors();
    FindAffine();
    FindErrors();
    return "";
  }

  // The errors allowed, relative to a row's deviation, in its elements and its statistics.
  void FindRowErrors() {
    row_error_.assign(rstd_.size(), units_);
    element_error_.assign(rstd_.size(), 0);
    const bool given = spec_.statistics == Statistics::kGiven;
    const bool centered = spec_.statistics == Statistics::kMeanVariance;
    const bool visible = !is_sum() || spec_.residual_out;
    std::vector<double> largest(rstd_.size(), 0);
    ForElements([&](std::size_t i, std::int64_t n, const Place& place) {
      double& most = largest[static_cast<std::size_t>(n * rows_ + place.row)];
      most = std::max(most, std::fabs(u_[i]));
    });
    for (std::size_t row = 0; row < rstd_.size(); ++row) {
      // Given ones are of order 1.
      const double rstd = given ? 1.5 : rstd_[row];
      const double of_mean = given ? 4 : std::fabs(mean_[row]) * rstd;
      const double most = largest[row] + of_mean;
      if (centered) {  // The accumulation type's error for numbers as large as the row's.
        const bool combined = spec_.combine_input != Combine::kNone;
        const double lost = rounding_ * (combined ? 8 * most : of_magnitude_ ? most : of_mean);
        row_error_[row] += large_mean_ && !combined ? std::min(lost, 1e-4) : lost;
      }
      if (!std::isfinite(row_error_[row])) row_error_[row] = units_;  // Next to an infinity.
      if (visible || !rounds_twice() || !std::isfinite(most / rstd)) continue;
      // Each element has the rounding errors of terms of order 1, and then perhaps one of the type.
      const double value = most / rstd;
      const double off = 16 * rounding_ + (is_half() ? Spacing(spec_.dtype, value) : 0);
      element_error_[row] = off * rstd;
      if (!given) row_error_[row] += centered ? off * rstd : off / value;
    }
  }

  // The magnitudes of the terms of each sample's and channel's factor and offset.
  void FindAffine() {
    const std::int64_t channels = spec_.channels;
    factor_.resize(static_cast<std::size_t>(segment_.samples() * channels));
    offset_.resize(factor_.size());
    for (std::int64_t n = 0; n < segment_.samples(); ++n) {
      for (std::int64_t c = 0; c < channels; ++c) {
        double factor = 0, offset = 0;
        AddStyle(n, c, &factor, &offset);
        const std::int64_t at = n * channels + c;
        if (spec_.scale) {
          const double by =
              std::fabs(spec_.scale_offset) + std::fabs(segment_.InputAt(S::kScale, at));
          factor *= by;
          offset *= by;
        }
        if (spec_.shift) offset += std::fabs(segment_.InputAt(S::kShift, at));
        factor_[static_cast<std::size_t>(at)] = factor;
        offset_[static_cast<std::size_t>(at)] = offset;
      }
    }
  }

  void AddStyle(std::int64_t n, std::int64_t c, double* factor, double* offset) const {
    const auto add = [&](std::int64_t k, double weight) {
      const std::int64_t at = k * spec_.channels + c;
      *factor += weight * Magnitude(params_.gamma, at, 1);
      *offset += weight * Magnitude(params_.beta, at, 0);
    };
    switch (spec_.style) {
      case Style::kNone: add(0, 1); break;
      case Style::kIndex: {
        std::int64_t k = 0;
        std::memcpy(&k, static_cast<const char*>(segment_.input(S::kStyleIndex)) + 8 * n, 8);
        add(k, 1);
        break;
      }
      case Style::kMix:
        for (std::int64_t k = 0; k < spec_.styles; ++k) {
          add(k, std::fabs(segment_.InputAt(S::kStyleWeights, n * spec_.styles + k)));
        }
        break;
      case Style::kTensor: {
        // Numbers of order 1, and large ones times the deviation.
        const std::int64_t count = reference_.style_spatial;
        double most = 1 + std::sqrt(spec_.eps);
        for (std::int64_t s = 0; s < count; ++s) {
          const std::int64_t at = spec_.layout == Layout::kChannelsFirst
                                      ? (n * spec_.channels + c) * count + s
                                      : (n * count + s) * spec_.channels + c;
          most = std::max(most, std::fabs(segment_.InputAt(S::kStyleTensor, at)));
        }
        *factor = *offset = most;
        break;
      }
    }
    if (params_.gamma.data != nullptr) {
      *factor += std::fabs(spec_.weight_offset);
    } else if (spec_.style == Style::kMix) {
      *factor = 1;
    }
  }

  // The error allowed in each result before it is rounded or quantized.
  void FindErrors() {
    error_.resize(y_.size());
    const bool centered =
        spec_.statistics == Statistics::kMeanVariance || spec_.statistics == Statistics::kGiven;
    ForElements([&](std::size_t i, std::int64_t n, const Place& place) {
      const double u = std::fabs(u_[i]);
      const auto of_row = static_cast<std::size_t>(n * rows_ + place.row);
      const double row = row_error_[of_row];
      const auto at = static_cast<std::size_t>(n * spec_.channels + place.channel);
      const double factor = factor_[at];
      // The mean's error is a part of the deviation; for given ones, a part of theirs.
      const double mean_error =
          !centered ? 0 : row * (spec_.statistics == Statistics::kGiven ? 4 : 1);
      const double terms = u * factor + offset_[at];
      double error = (row * u + mean_error + element_error_[of_row]) * factor + units_ * terms;
      if (spec_.activation != Activation::kNone) {
        error *= 1.13;
        // In 16 bits it is promised to be within one unit (docs/operations.md).
        const bool joined = spec_.combine_output != Combine::kNone;
        error += unit16_ * (joined ? terms : std::fabs(y_[i]));
      }
      error = Joined(static_cast<std::int64_t>(i), error, terms) + units_ * std::fabs(y_[i]);
      error_[i] = std::isfinite(error) ? error : 0;  // Next to NaNs and infinities.
    });
  }

  // The error after the second tensor is combined with the output.
  double Joined(std::int64_t index, double error, double terms) const {
    if (spec_.combine_output == Combine::kNone) return error;
    const double other = segment_.InputAt(S::kOther, index);
    if (spec_.combine_output == Combine::kAdd) {
      return error + rounding_ * (terms + std::fabs(other));
    }
    return std::fabs(FactorOf(spec_.combine_output, other)) * error;
  }

  std::string CheckStatistics() const {
    for (std::size_t row = 0; row < rstd_.size(); ++row) {
      const auto index = static_cast<std::int64_t>(row);
      if (segment_.output(S::kMeanOut) != nullptr) {
        const double got = segment_.OutputAt(S::kMeanOut, index);
        const double error = 2 * rounding_ * std::fabs(mean_[row]) + row_error_[row] / rstd_[row];
        if (!Matches(got, mean_[row], error))
          return Wrong("mean_out", index, got, mean_[row], error);
      }
      if (segment_.output(S::kRstdOut) != nullptr) {
        const double got = segment_.OutputAt(S::kRstdOut, index);
        // Once for the elements and once for the mean.
        const double error = 2 * row_error_[row] * rstd_[row];
        if (!Matches(got, rstd_[row], error))
          return Wrong("rstd_out", index, got, rstd_[row], error);
      }
    }
    return "";
  }

  static bool Matches(double got, double want, double error) {
    if (!std::isfinite(want)) return !std::isfinite(got);  // Merges of infinities give NaNs.
    return got == want || std::fabs(got - want) <= error;
  }

  std::string CheckScales() const {
    if (segment_.output(S::kScaleOut) == nullptr) return "";
    const std::vector<double> want = ReferenceScales(spec_, reference_, y_.data());
    std::vector<double> least(want.size(), 0x1p-126), most(want.size(), 0x1p-126);
    const double largest = LargestQuantized(spec_.quantization);
    ForElements([&](std::size_t i, std::int64_t n, const Place& place) {
      const auto at = static_cast<std::size_t>(n * scales_ + place.scale);
      const double magnitude = std::fabs(y_[i]);
      least[at] = std::max(least[at], (magnitude - error_[i]) / largest * (1 - kScaleError));
      most[at] = std::max(most[at], (magnitude + error_[i]) / largest * (1 + kScaleError));
    });
    for (std::size_t at = 0; at < want.size(); ++at) {
      const double got = segment_.OutputAt(S::kScaleOut, static_cast<std::int64_t>(at));
      const bool right =
          std::isfinite(want[at]) ? IsBetween(got, least[at], most[at]) : Matches(got, want[at], 0);
      if (!right) {
        return Wrong("scale_out", static_cast<std::int64_t>(at), got, want[at],
                     most[at] - want[at]);
      }
    }
    return "";
  }

  std::string CheckY() const {
    const bool quantized = spec_.quantization != Quantization::kNone;
    for (std::size_t i = 0; i < y_.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      const double got = segment_.OutputAt(S::kY, index);
      const bool right = quantized ? IsQuantized(got, index) : IsRounded(got, index);
      if (!right) return Wrong("y", index, got, y_[i], error_[i]) + Around(index);
    }
    return "";
  }

  std::string Around(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return " (normalized " + std::to_string(u_[at]) + ", sample " + std::to_string(Sample(i)) +
           ", channel " + std::to_string(PlaceOf(i).channel) + ", position " +
           std::to_string(PlaceOf(i).position) + ", rstd " +
           std::to_string(rstd_[static_cast<std::size_t>(Row(i))]) + ")";
  }

  bool IsRounded(double got, std::int64_t index) const {
    const double want = y_[static_cast<std::size_t>(index)];
    const double error = error_[static_cast<std::size_t>(index)];
    if (std::isnan(want)) return std::isnan(got);
    if (!std::isfinite(want)) return got == want;
    if (got == RoundTo(spec_.dtype, want)) return true;
    if (!is_half()) return std::fabs(got - want) <= error;
    return IsBetween(got, RoundTo(spec_.dtype, want - error), RoundTo(spec_.dtype, want + error));
  }

  bool IsQuantized(double got, std::int64_t index) const {
    const double want = y_[static_cast<std::size_t>(index)];
    const double error = error_[static_cast<std::size_t>(index)];
    const double scale = spec_.quantization_scale == QuantizationScale::kStatic
                             ? spec_.output_scale
                             : segment_.OutputAt(S::kScaleOut, Scale(index));
    const double value = want / scale;
    if (!std::isfinite(value)) {
      const double code = Quantized(spec_.quantization, value);
      return std::isnan(code) ? std::isnan(got) : got == code;
    }
    if (got == Quantized(spec_.quantization, value)) return true;
    const double off = error / scale + kScaleError * std::fabs(value);
    return IsBetween(got, Quantized(spec_.quantization, value - off),
                     Quantized(spec_.quantization, value + off));
  }

  const NormSpec& spec_;
  const NormParams& params_;
  const StagedSegment& segment_;
  const Segment reference_;
  const double rounding_;
  const double units_;
  const double unit16_;  // One unit in the last place of a 16-bit type, 0 for others.
  const bool large_mean_;
  const bool of_magnitude_;
  std::vector<Place> places_;           // For each place in a sample.
  std::int64_t rows_ = 0, scales_ = 0;  // How many a sample has.
  std::vector<double> y_, u_, mean_, rstd_, row_error_, element_error_, factor_, offset_, error_;
};

}  // namespace

std::string CheckStaged(const NormSpec& spec, const NormParams& params,
                        const StagedSegment& segment, const StagedBounds& bounds) {
  return Check(spec, params, segment, bounds).Run();
}

}  // namespace normd::norm::testing
