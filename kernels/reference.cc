#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/mixed_runs.h"
#include "kernels/sample_range.h"

namespace normd::norm {
namespace {

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

namespace {

double CombineWith(Combine combine, double v, double other) {
  switch (combine) {
    case Combine::kNone: return v;
    case Combine::kAdd: return v + other;
    case Combine::kMultiply: return v * other;
    case Combine::kMultiplySilu: return v * (other / (1 + std::exp(-other)));
    case Combine::kMultiplySigmoid: return v / (1 + std::exp(-other));
  }
  return v;
}

// Where the elements of a segment lie, and which parameters apply to them.
class ReferenceTensor {
 public:
  ReferenceTensor(const NormSpec& spec, const NormParams& params, const Segment& segment)
      : spec_(spec),
        params_(params),
        segment_(segment),
        places_{spec.channel_runs, segment.spatial_runs} {}

  std::int64_t Index(std::int64_t n, std::int64_t c, std::int64_t s) const {
    return Index(n, c, s, segment_.spatial);
  }
  std::int64_t Channel(std::int64_t index) const {
    if (spec_.layout == Layout::kMixedRuns) {
      return places_.ChannelAt(index % (spec_.channels * segment_.spatial));
    }
    return spec_.layout == Layout::kChannelsFirst ? index / segment_.spatial % spec_.channels
                                                  : index % spec_.channels;
  }
  std::int64_t Sample(std::int64_t index) const {
    return index / (spec_.channels * segment_.spatial);
  }
  // An element of an array [samples, channels] of the spec's type.
  double OfSample(const void* data, std::int64_t n, std::int64_t c) const {
    return LoadElement(spec_.dtype, data, n * spec_.channels + c);
  }

  double X(std::int64_t index) const {
    const std::int64_t gap = GapsOf(spec_, segment_).x;
    return LoadElement(spec_.dtype, segment_.x, index + (gap == 0 ? 0 : Sample(index) * gap));
  }

  double Sum(std::int64_t index) const {
    const bool by_channel = spec_.gate || params_.input_bias.data != nullptr;
    const std::int64_t c = by_channel ? Channel(index) : 0;
    double v = X(index) + LoadOr(params_.input_bias, c, 0);
    if (spec_.gate) v *= OfSample(segment_.gate, Sample(index), c);
    if (spec_.residual) v += LoadElement(spec_.dtype, segment_.residual, index);
    return v;
  }

  // The factor and offset of a sample's channel.
  struct Affine {
    double factor;
    double offset;
  };
  Affine AffineOf(std::int64_t n, std::int64_t c) {
    if (n != cached_sample_ || c != cached_channel_) {
      cached_ = ComputeAffine(n, c);
      cached_sample_ = n;
      cached_channel_ = c;
    }
    return cached_;
  }

  std::int64_t StyleIndex(std::int64_t n) const {
    std::int64_t index = 0;  // The array may begin at any byte.
    std::memcpy(&index, reinterpret_cast<const char*>(segment_.style_index) + 8 * n, sizeof(index));
    return index;
  }

 private:
  // Whether an offset precedes the sample's shift. Without one, an infinite factor must not make a
  // NaN.
  bool HasOffset() const { return params_.beta.data != nullptr || spec_.style == Style::kTensor; }

  Affine ComputeAffine(std::int64_t n, std::int64_t c) const {
    Affine affine = StyleOf(n, c);
    if (spec_.scale) {
      const double factor = spec_.scale_offset + OfSample(segment_.scale, n, c);
      affine.factor *= factor;
      if (HasOffset()) affine.offset *= factor;
    }
    if (spec_.shift) affine.offset += OfSample(segment_.shift, n, c);
    return affine;
  }

  std::int64_t Index(std::int64_t n, std::int64_t c, std::int64_t s, std::int64_t spatial) const {
    if (spec_.layout == Layout::kMixedRuns) {
      return n * spec_.channels * spatial + places_.OfChannel(c) + places_.OfPosition(s);
    }
    return spec_.layout == Layout::kChannelsFirst ? (n * spec_.channels + c) * spatial + s
                                                  : (n * spatial + s) * spec_.channels + c;
  }

  Affine FromTable(std::int64_t k, std::int64_t c) const {
    const std::int64_t at = k * spec_.channels + c;
    return {LoadOr(params_.gamma, at, 1), LoadOr(params_.beta, at, 0)};
  }

  Affine StyleOf(std::int64_t n, std::int64_t c) const {
    if (spec_.style == Style::kTensor) return OfTensor(n, c);
    Affine affine{};
    switch (spec_.style) {
      case Style::kIndex: affine = FromTable(StyleIndex(n), c); break;
      case Style::kMix:
        for (std::int64_t k = 0; k < spec_.styles; ++k) {
          const double weight =
              LoadElement(spec_.dtype, segment_.style_weights, n * spec_.styles + k);
          const Affine row = FromTable(k, c);
          affine.factor += weight * row.factor;
          if (HasOffset()) affine.offset += weight * row.offset;
        }
        break;
      default: affine = FromTable(0, c);
    }
    if (params_.gamma.data == nullptr) return {1, affine.offset};
    return {affine.factor + spec_.weight_offset, affine.offset};
  }

  Affine OfTensor(std::int64_t n, std::int64_t c) const {
    const std::int64_t count = segment_.style_spatial;
    double mean = 0;
    double variance = 0;
    const auto element = [&](std::int64_t s) {
      return LoadElement(spec_.dtype, segment_.style_tensor, Index(n, c, s, count));
    };
    for (std::int64_t s = 0; s < count; ++s) mean += element(s);
    mean /= static_cast<double>(count);
    for (std::int64_t s = 0; s < count; ++s) {
      variance += (element(s) - mean) * (element(s) - mean);
    }
    return {std::sqrt(variance / static_cast<double>(count) + spec_.eps), mean};
  }

  const NormSpec& spec_;
  const NormParams& params_;
  const Segment& segment_;
  const MixedRuns places_;  // With Layout::kMixedRuns.
  // Kept because a channel's elements come together, and a style tensor's statistics take its whole
  // channel.
  Affine cached_{};
  std::int64_t cached_sample_ = -1;
  std::int64_t cached_channel_ = -1;
};

bool IsSum(const NormSpec& spec, const NormParams& params) {
  return spec.residual || params.input_bias.data != nullptr;
}

// The value that is normalized.
double InputElement(const NormSpec& spec, const NormParams& params, const Segment& segment,
                    std::int64_t index) {
  if (IsSum(spec, params)) return NormalizedElement(spec, params, segment, index);
  const double x = ReferenceTensor(spec, params, segment).X(index);
  if (spec.combine_input == Combine::kNone) return x;
  return CombineWith(spec.combine_input, x, LoadElement(spec.dtype, segment.other, index));
}

struct RowNorm {
  double mean = 0;
  double rstd = 1;
};

RowNorm NormOf(const NormSpec& spec, const std::vector<double>& row) {
  const double count = static_cast<double>(row.size());
  RowNorm norm;
  double sum = 0;
  if (spec.statistics == Statistics::kMeanVariance) {
    for (const double v : row) norm.mean += v;
    norm.mean /= count;
  }
  for (const double v : row) {
    const double deviation = v - norm.mean;
    switch (spec.statistics) {
      case Statistics::kSumOfAbsolutes: sum += std::fabs(v); break;
      case Statistics::kLargestAbsolute:
        sum = std::isnan(sum) || std::fabs(v) <= sum ? sum : std::fabs(v);
        break;
      default: sum += deviation * deviation;
    }
  }
  switch (spec.statistics) {
    case Statistics::kMeanVariance:
    case Statistics::kMeanSquare: norm.rstd = 1 / std::sqrt(sum / count + spec.eps); break;
    case Statistics::kRootOfSquares: sum = std::sqrt(sum); [[fallthrough]];
    default: norm.rstd = 1 / (sum < spec.eps ? spec.eps : sum);  // A NaN stays one.
  }
  return norm;
}

// Calls visit(row, n, elements) for each row; the elements are pairs of channel and index.
template <typename Visit>
void ForRows(const NormSpec& spec, const Segment& segment, const Visit& visit) {
  const bool positions = spec.rows == Rows::kPosition;
  const std::int64_t group_channels = spec.channels / spec.groups;
  const NormParams none;
  const ReferenceTensor tensor(spec, none, segment);
  // An element's place in its sample is that of its channel and of its position together.
  std::vector<std::int64_t> of_channels;
  for (std::int64_t c = 0; c < spec.channels; ++c) of_channels.push_back(tensor.Index(0, c, 0));
  std::vector<std::int64_t> of_positions;
  for (std::int64_t s = 0; s < segment.spatial; ++s) of_positions.push_back(tensor.Index(0, 0, s));
  std::vector<std::pair<std::int64_t, std::int64_t>> elements;
  std::int64_t row = 0;
  for (std::int64_t n = 0; n < segment.samples; ++n) {
    for (std::int64_t g = 0; g < spec.groups; ++g) {
      for (std::int64_t at = 0; at < (positions ? segment.spatial : 1); ++at, ++row) {
        elements.clear();
        for (std::int64_t c = g * group_channels; c < (g + 1) * group_channels; ++c) {
          const std::int64_t of_channel =
              n * spec.channels * segment.spatial + of_channels[static_cast<std::size_t>(c)];
          for (std::int64_t s = positions ? at : 0; s < (positions ? at + 1 : segment.spatial);
               ++s) {
            elements.emplace_back(c, of_channel + of_positions[static_cast<std::size_t>(s)]);
          }
        }
        visit(row, n, elements);
      }
    }
  }
}

// Calls visit(elements) with the elements that each scale covers: a row's, or a block's.
template <typename Visit>
void ForScales(const NormSpec& spec, const Segment& segment, const Visit& visit) {
  ForRows(spec, segment, [&](std::int64_t, std::int64_t, const auto& row) {
    const std::size_t block = spec.quantization_scale == QuantizationScale::kBlock
                                  ? static_cast<std::size_t>(kQuantizationBlock)
                                  : row.size();
    std::vector<std::int64_t> elements;
    for (std::size_t at = 0; at < row.size(); ++at) {
      elements.push_back(row[at].second);
      if (elements.size() < block && at + 1 < row.size()) continue;
      visit(elements);
      elements.clear();
    }
  });
}

}  // namespace

double NormalizedElement(const NormSpec& spec, const NormParams& params, const Segment& segment,
                         std::int64_t index) {
  const double sum = ReferenceTensor(spec, params, segment).Sum(index);
  if (!IsSum(spec, params)) return sum;
  double rounded = 0;  // StoreElement fills as many of its bytes as the type has.
  StoreElement(spec.dtype, &rounded, 0, sum);
  return LoadElement(spec.dtype, &rounded, 0);
}

Status NormalizeReference(const NormSpec& spec, const NormParams& params, const Segment& segment,
                          const ReferenceOutputs& out) {
  if (Status status = ValidateSpec(spec, params); !status.ok()) return status;
  Segment checked = segment;
  // The outputs are not used, so they need not be set.
  if (checked.y == nullptr) checked.y = const_cast<void*>(checked.x);
  if (spec.residual_out && checked.residual_out == nullptr) checked.residual_out = checked.y;
  float scale = 0;
  if (spec.quantization_scale != QuantizationScale::kStatic) checked.scale_out = &scale;
  if (Status status = ValidateSegments(spec, &checked, 1); !status.ok()) return status;
  const NormParams& own = segment.params != nullptr ? *segment.params : params;

  ReferenceTensor tensor(spec, own, segment);
  for (std::int64_t n = 0; spec.style == Style::kIndex && n < segment.samples; ++n) {
    const std::int64_t index = segment.spatial > 0 ? tensor.StyleIndex(n) : 0;
    if (index >= 0 && index < spec.styles) continue;
    return InvalidArgument("style_index[" + std::to_string(n) + "]: " + std::to_string(index) +
                           ", wanted a row of " + std::to_string(spec.styles));
  }
  std::vector<double> v;
  ForRows(spec, segment, [&](std::int64_t row, std::int64_t n, const auto& elements) {
    v.clear();
    for (const auto& [c, i] : elements) v.push_back(InputElement(spec, own, segment, i));
    RowNorm norm;
    if (spec.statistics != Statistics::kGiven) norm = NormOf(spec, v);
    if (out.mean != nullptr) out.mean[row] = norm.mean;
    if (out.rstd != nullptr) out.rstd[row] = norm.rstd;
    for (std::size_t at = 0; at < v.size(); ++at) {
      const auto [c, i] = elements[at];
      if (spec.statistics == Statistics::kGiven) {
        norm = {LoadElement(own.mean.dtype, own.mean.data, c),
                1 / std::sqrt(LoadElement(own.variance.dtype, own.variance.data, c) + spec.eps)};
      }
      const auto affine = tensor.AffineOf(n, c);
      const double normalized = (v[at] - norm.mean) * norm.rstd;
      if (out.normalized != nullptr) out.normalized[i] = normalized;
      double y = normalized * affine.factor + affine.offset;
      y = Activate(spec.activation, spec.leaky_slope, y);
      if (spec.combine_output != Combine::kNone) {
        y = CombineWith(spec.combine_output, y, LoadElement(spec.dtype, segment.other, i));
      }
      out.y[i] = y;
    }
  });
  return Status();
}

std::vector<double> ReferenceScales(const NormSpec& spec, const Segment& segment, const double* y) {
  std::vector<double> scales;
  const double largest = LargestQuantized(spec.quantization);
  ForScales(spec, segment, [&](const std::vector<std::int64_t>& elements) {
    double most = 0;
    for (const std::int64_t i : elements) {
      const double magnitude = std::fabs(y[i]);
      if (!(magnitude <= most) && !std::isnan(most)) most = magnitude;
    }
    const double scale = most / largest;
    scales.push_back(scale < 0x1p-126 ? 0x1p-126 : scale);
  });
  return scales;
}

void DivideByScales(const NormSpec& spec, const Segment& segment, const std::vector<double>& scales,
                    double* y) {
  std::size_t next = 0;
  ForScales(spec, segment, [&](const std::vector<std::int64_t>& elements) {
    for (const std::int64_t i : elements) y[i] /= scales[next];
    ++next;
  });
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
