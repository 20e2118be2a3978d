#include "kernels/bench/data.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/bench/staged_error.h"
#include "kernels/reference.h"
#include "kernels/sample_range.h"

namespace normd::norm::bench {
namespace {

// One row and its channels' parameters as a tensor of its own: one sample, one group.
struct Row {
  NormSpec spec;
  NormParams params;
  std::vector<char> x, y;
};

ParamVector Slice(const ParamVector& param, std::int64_t first) {
  if (param.data == nullptr) return param;
  const auto offset = first * static_cast<std::int64_t>(SizeOf(param.dtype));
  return {static_cast<const char*>(param.data) + offset, param.dtype};
}

Row CopyRow(const NormSpec& spec, const NormParams& params, const Segment& segment,
            std::int64_t row) {
  const std::int64_t sample = row / spec.groups;
  const std::int64_t channels = spec.channels / spec.groups;
  const std::int64_t first = row % spec.groups * channels;
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  Row out;
  out.spec = spec;
  out.spec.channels = channels;
  out.spec.groups = spec.statistics == Statistics::kGiven ? channels : 1;
  out.params = {Slice(params.gamma, first), Slice(params.beta, first), Slice(params.mean, first),
                Slice(params.variance, first), Slice(params.input_bias, first)};
  const bool last = spec.layout == Layout::kChannelsLast;
  const std::int64_t runs = last ? segment.spatial : 1;
  const std::int64_t run_bytes = (last ? channels : channels * segment.spatial) * element;
  const std::int64_t stride_bytes = spec.channels * element;
  const std::int64_t begin =
      (sample * segment.spatial * spec.channels + (last ? first : first * segment.spatial)) *
      element;
  for (auto [from, to] : {std::pair(static_cast<const char*>(segment.x), &out.x),
                          std::pair(static_cast<const char*>(segment.y), &out.y)}) {
    to->resize(static_cast<std::size_t>(runs * run_bytes));
    for (std::int64_t run = 0; run < runs; ++run) {
      std::memcpy(to->data() + run * run_bytes, from + begin + run * stride_bytes,
                  static_cast<std::size_t>(run_bytes));
    }
  }
  return out;
}

double RowError(const Row& row, std::int64_t spatial) {
  Segment segment{row.x.data(), nullptr, 1, spatial};
  segment.y = const_cast<char*>(row.y.data());
  return StagedMaxError(row.spec, row.params, segment);
}

}  // namespace

std::vector<char> RandomElements(DType dtype, std::int64_t elements, double low, double high,
                                 std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<char> out(static_cast<std::size_t>(elements) * SizeOf(dtype));
  for (std::int64_t i = 0; i < elements; ++i) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    StoreElement(dtype, out.data(), i, low + (high - low) * unit);
  }
  return out;
}

HostParams::HostParams(const Case& c, DType param_dtype, std::uint64_t seed) : dtype(param_dtype) {
  const NormSpec& spec = c.spec;
  if (spec.statistics == Statistics::kGiven) {
    mean = RandomElements(dtype, spec.channels, -0.5, 0.5, seed + 3);
    variance = RandomElements(dtype, spec.channels, 0.1, 2, seed + 4);
  }
  if (c.input_bias) input_bias = RandomElements(dtype, spec.channels, -0.5, 0.5, seed + 6);
  // Norms by other than the mean square, and those that other tensors modulate, have no gamma and
  // beta.
  if (spec.statistics > Statistics::kGiven || spec.scale || spec.shift ||
      spec.style == Style::kTensor) {
    return;
  }
  const std::int64_t elements = spec.channels * std::max<std::int64_t>(spec.styles, 1);
  gamma = RandomElements(dtype, elements, 0.5, 1.5, seed + 1);
  // As in language models.
  const bool no_beta = spec.statistics == Statistics::kMeanSquare &&
                       (spec.residual || c.input_bias || spec.combine_input != Combine::kNone ||
                        spec.quantization != Quantization::kNone);
  if (!no_beta) beta = RandomElements(dtype, elements, -0.5, 0.5, seed + 2);
}

NormParams HostParams::view() const {
  const auto vector = [this](const std::vector<char>& data) {
    return ParamVector{data.empty() ? nullptr : data.data(), dtype};
  };
  return {vector(gamma), vector(beta), vector(mean), vector(variance), vector(input_bias)};
}

double MaxError(const NormSpec& spec, const NormParams& params, const Segment& segment,
                std::int64_t max_elements, std::int64_t* checked) {
  const bool rows = IsPlain(spec, params) && !spec.residual;
  const std::int64_t all = segment.samples * (rows ? spec.groups : 1);
  const std::int64_t length =
      rows ? RowLength(spec, segment.spatial) : spec.channels * segment.spatial;
  if (all == 0 || length == 0) return 0;
  const std::int64_t count = std::min(all, std::max<std::int64_t>(max_elements / length, 2));
  double worst = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = count == 1 ? 0 : i * (all - 1) / (count - 1);
    const double error = rows ? RowError(CopyRow(spec, params, segment, at), segment.spatial)
                              : StagedMaxError(spec, params, SamplesOf(spec, segment, at, 1));
    worst = std::max(worst, error);
    *checked += length;
  }
  return worst;
}

}  // namespace normd::norm::bench
