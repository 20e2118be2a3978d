#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace normd::norm {
namespace {

template <typename T>
T Read(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void Write(void* data, std::int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), &value,
              sizeof(T));
}

// A binary format of 16 bits: `mantissa_bits` explicit ones, exponents from `min_exponent` (of the
// smallest normal number) to `max_exponent`.
struct HalfFormat {
  int mantissa_bits;
  int min_exponent;
  int max_exponent;
};
constexpr HalfFormat kFloat16Format{10, -14, 15};
constexpr HalfFormat kBFloat16Format{7, -126, 127};

double Decode(const HalfFormat& format, std::uint16_t bits) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent_bits = 15 - format.mantissa_bits;
  const int biased = (bits >> format.mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (biased == (1 << exponent_bits) - 1) {
    if (mantissa != 0) return std::numeric_limits<double>::quiet_NaN();
    return sign * std::numeric_limits<double>::infinity();
  }
  if (biased == 0) return sign * std::ldexp(mantissa, format.min_exponent - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits),
                           biased - 1 + format.min_exponent - format.mantissa_bits);
}

std::uint16_t Encode(const HalfFormat& format, double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = ((1 << (15 - format.mantissa_bits)) - 1) << format.mantissa_bits;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | infinity | (1 << (format.mantissa_bits - 1)));
  }
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  // The spacing of the format's numbers around |value|; nearbyint rounds to nearest even.
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double scaled = std::ldexp(std::fabs(value), format.mantissa_bits - exponent);
  const double rounded = std::nearbyint(scaled);
  // A carry out of the mantissa moves into the exponent field by itself, up to infinity.
  if (exponent > format.max_exponent) return static_cast<std::uint16_t>(sign | infinity);
  const std::int64_t bits =
      (static_cast<std::int64_t>(exponent - format.min_exponent) << format.mantissa_bits) +
      static_cast<std::int64_t>(rounded);
  return static_cast<std::uint16_t>(sign | static_cast<int>(bits));
}

double Activate(Activation activation, double leaky_slope, double v) {
  switch (activation) {
    case Activation::kNone: return v;
    case Activation::kRelu: return v < 0 ? 0 : v;
    case Activation::kLeakyRelu: return v < 0 ? leaky_slope * v : v;
    case Activation::kSilu: return v / (1 + std::exp(-v));
    case Activation::kGeluErf: return 0.5 * v * (1 + std::erf(v * M_SQRT1_2));
    case Activation::kGeluTanh: {
      const double inner = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
      return 0.5 * v * (1 + std::tanh(inner));
    }
  }
  return v;
}

double LoadOr(const ParamVector& param, std::int64_t index, double absent) {
  return param.data == nullptr ? absent : LoadElement(param.dtype, param.data, index);
}

}  // namespace

double LoadElement(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<double>(Read<float>(data, index));
    case DType::kFloat64: return Read<double>(data, index);
    case DType::kFloat16: return Decode(kFloat16Format, Read<std::uint16_t>(data, index));
    case DType::kBFloat16: return Decode(kBFloat16Format, Read<std::uint16_t>(data, index));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void StoreElement(DType dtype, void* data, std::int64_t index, double value) {
  switch (dtype) {
    case DType::kFloat32: Write(data, index, static_cast<float>(value)); return;
    case DType::kFloat64: Write(data, index, value); return;
    case DType::kFloat16: Write(data, index, Encode(kFloat16Format, value)); return;
    case DType::kBFloat16: Write(data, index, Encode(kBFloat16Format, value)); return;
  }
}

double NormalizedElement(const NormSpec& spec, const Segment& segment, std::int64_t index) {
  const double x = LoadElement(spec.dtype, segment.x, index);
  if (!spec.residual) return x;
  double sum = 0;  // StoreElement fills as much of it as the type has.
  StoreElement(spec.dtype, &sum, 0, x + LoadElement(spec.dtype, segment.residual, index));
  return LoadElement(spec.dtype, &sum, 0);
}

Status NormalizeReference(const NormSpec& spec, const NormParams& params, const Segment& segment,
                          double* y) {
  if (Status status = ValidateSpec(spec, params); !status.ok()) return status;
  Segment checked = segment;
  if (checked.y == nullptr) checked.y = const_cast<void*>(checked.x);
  if (spec.residual_out && checked.residual_out == nullptr) checked.residual_out = checked.y;
  if (Status status = ValidateSegments(spec, &checked, 1); !status.ok()) return status;
  const NormParams& own = segment.params != nullptr ? *segment.params : params;

  const std::int64_t spatial = segment.spatial;
  const std::int64_t group_channels = spec.channels / spec.groups;
  const double row_length = static_cast<double>(RowLength(spec, spatial));
  const auto index = [&](std::int64_t n, std::int64_t c, std::int64_t s) {
    return spec.layout == Layout::kChannelsFirst ? (n * spec.channels + c) * spatial + s
                                                 : (n * spatial + s) * spec.channels + c;
  };
  for (std::int64_t n = 0; n < segment.samples; ++n) {
    for (std::int64_t g = 0; g < spec.groups; ++g) {
      const std::int64_t first = g * group_channels;
      double mean = 0;
      double variance = 0;
      // Visits each element of the row as (channel, index of the element).
      const auto for_row = [&](auto visit) {
        for (std::int64_t c = first; c < first + group_channels; ++c) {
          for (std::int64_t s = 0; s < spatial; ++s) visit(c, index(n, c, s));
        }
      };
      if (spec.statistics == Statistics::kMeanVariance) {
        for_row([&](auto, auto i) { mean += NormalizedElement(spec, segment, i); });
        mean /= row_length;
      }
      if (spec.statistics != Statistics::kGiven) {
        for_row([&](auto, auto i) {
          const double deviation = NormalizedElement(spec, segment, i) - mean;
          variance += deviation * deviation;
        });
        variance /= row_length;
      }
      for_row([&](std::int64_t c, std::int64_t i) {
        if (spec.statistics == Statistics::kGiven) {
          mean = LoadElement(own.mean.dtype, own.mean.data, c);
          variance = LoadElement(own.variance.dtype, own.variance.data, c);
        }
        const double v = (NormalizedElement(spec, segment, i) - mean) /
                             std::sqrt(variance + spec.eps) * LoadOr(own.gamma, c, 1) +
                         LoadOr(own.beta, c, 0);
        y[i] = Activate(spec.activation, spec.leaky_slope, v);
      });
    }
  }
  return Status();
}

Status LinearNormReference(const LinearNormSpec& spec, const LinearNormParams& params,
                           const LinearNormSegment& segment, double* out) {
  if (Status status = ValidateLinearNorm(spec, params); !status.ok()) return status;
  LinearNormSegment checked = segment;
  if (checked.out == nullptr) checked.out = const_cast<void*>(checked.x);
  if (Status status = ValidateLinearNormSegments(spec, &checked, 1); !status.ok()) return status;

  const std::int64_t features = spec.out_features;
  std::vector<double> x(static_cast<std::size_t>(spec.in_features));
  std::vector<double> z(static_cast<std::size_t>(features));
  for (std::int64_t n = 0; n < segment.samples; ++n) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto at = n * spec.in_features + static_cast<std::int64_t>(i);
      x[i] = LoadElement(spec.dtype, segment.x, at);
    }
    double mean = 0;
    for (std::int64_t f = 0; f < features; ++f) {
      double sum = LoadOr(params.bias, f, 0);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto at = f * spec.in_features + static_cast<std::int64_t>(i);
        sum += x[i] * LoadElement(params.weight.dtype, params.weight.data, at);
      }
      z[static_cast<std::size_t>(f)] = sum;
      mean += sum;
    }
    mean /= static_cast<double>(features);
    double variance = 0;
    for (const double value : z) variance += (value - mean) * (value - mean);
    variance /= static_cast<double>(features);
    for (std::int64_t f = 0; f < features; ++f) {
      double v = (z[static_cast<std::size_t>(f)] - mean) / std::sqrt(variance + spec.eps);
      const std::int64_t at = n * features + f;
      const double y = spec.epilogue.needs_y() ? LoadElement(spec.dtype, segment.y, at) : 0;
      if (spec.epilogue.add) v += y;
      if (spec.epilogue.multiply) v *= y;
      out[at] =
          Activate(spec.epilogue.activation, static_cast<double>(spec.epilogue.leaky_slope), v);
    }
  }
  return Status();
}

}  // namespace normd::norm
