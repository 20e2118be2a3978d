// Styles that are mixed from a table's rows, or are the moments of a second tensor, become a table
// with a row for each sample: all other code reads rows of tables.

#include "kernels/cpu/styles.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/elements.h"
#include "kernels/sample_range.h"

namespace normd::norm::cpu {
namespace {

// The size of a table, for each thread or for one sample: in double, tables may be larger than the
// tensors, and a second-level cache keeps this many elements.
constexpr std::int64_t kMostTableElements = 16 << 10;

// gamma and beta of some samples, in double like everything computed from parameters: the weight 1
// among zeros then gives the same bits as its style's index.
class SampleTables {
 public:
  SampleTables(const Batch& batch, std::int64_t samples)
      : batch_(batch),
        spec_(batch.spec),
        channels_(batch.spec.channels),
        gamma_(Make(samples, batch.params.gamma)),
        beta_(Make(samples, batch.params.beta)) {}

  ParamVector gamma() const { return {gamma_.get(), DType::kFloat64}; }
  ParamVector beta() const { return {beta_.get(), DType::kFloat64}; }

  // Fills the table from sample 0 on.
  void Fill(const Segment& segment) const {
    const std::int64_t sources = spec_.style == Style::kMix ? spec_.styles : segment.style_spatial;
    const std::int64_t grain = 1 + kTaskElements / (channels_ * sources);
    batch_.parallel.For(segment.samples, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        if (spec_.style == Style::kMix) {
          Mix(segment, n, batch_.params.gamma, spec_.weight_offset, gamma_.get());
          Mix(segment, n, batch_.params.beta, 0, beta_.get());
        } else {
          Measure(segment, n, beta_.get() + n * channels_, gamma_.get() + n * channels_);
        }
      }
    });
  }

 private:
  std::unique_ptr<double[]> Make(std::int64_t samples, const Param& param) const {
    if (spec_.style == Style::kMix && !param.present()) return nullptr;
    return std::make_unique_for_overwrite<double[]>(static_cast<std::size_t>(samples * channels_));
  }

  // Writes the weighted sum of the table's rows, plus `more`, to the sample's row of `rows`, if
  // there are any.
  void Mix(const Segment& segment, std::int64_t sample, const Param& table, double more,
           double* rows) const {
    if (rows == nullptr) return;
    double* const mixed = rows + sample * channels_;
    std::fill(mixed, mixed + channels_, 0);
    for (std::int64_t k = 0; k < spec_.styles; ++k) {
      const double weight =
          ElementAt(spec_.dtype, segment.style_weights, sample * spec_.styles + k);
      for (std::int64_t c = 0; c < channels_; ++c) {
        mixed[c] += weight * table.At(k * channels_ + c, 0);
      }
    }
    if (more == 0) return;  // Adding 0 would lose the sign of -0.
    for (std::int64_t c = 0; c < channels_; ++c) mixed[c] += more;
  }

  // The mean and the deviation of each channel of the sample's style tensor.
  void Measure(const Segment& segment, std::int64_t sample, double* means,
               double* deviations) const {
    const std::int64_t count = segment.style_spatial;
    const auto bytes = static_cast<std::int64_t>(SizeOf(spec_.dtype));
    const char* const first =
        static_cast<const char*>(segment.style_tensor) + sample * channels_ * count * bytes;
    if (spec_.layout == Layout::kChannelsLast) {
      batch_.kernels->channel_moments({first, count, channels_}, true, means, deviations);
    } else {
      for (std::int64_t c = 0; c < channels_; ++c) {
        const Moments moments = batch_.kernels->moments(first + c * count * bytes, count, true);
        means[c] = moments.mean;
        deviations[c] = moments.m2;
      }
    }
    for (std::int64_t c = 0; c < channels_; ++c) {
      deviations[c] = std::sqrt(deviations[c] / static_cast<double>(count) + spec_.eps);
    }
  }

  const Batch& batch_;
  const NormSpec& spec_;
  const std::int64_t channels_;
  const std::unique_ptr<double[]> gamma_;  // Null: absent.
  const std::unique_ptr<double[]> beta_;
};

}  // namespace

void NormalizeStyles(const Batch& batch, const NormParams& params, const Segment& segment) {
  NormSpec spec = batch.spec;
  const std::int64_t most =
      std::min(segment.samples, batch.parallel.threads() *
                                    std::max<std::int64_t>(kMostTableElements / spec.channels, 1));
  const SampleTables tables(batch, most);
  spec.style = Style::kIndex;
  spec.styles = most;
  spec.weight_offset = 0;
  NormParams with_tables = params;
  with_tables.gamma = tables.gamma();
  with_tables.beta = tables.beta();
  std::vector<std::int64_t> rows(static_cast<std::size_t>(most));
  std::iota(rows.begin(), rows.end(), 0);
  for (std::int64_t first = 0; first < segment.samples; first += most) {
    Segment part = SamplesOf(batch.spec, segment, first, std::min(most, segment.samples - first));
    tables.Fill(part);
    part.style_index = rows.data();
    Params prepared(spec, with_tables);
    if (spec.rows == Rows::kPosition || segment.spatial == 1) prepared.PrepareElements(spec.dtype);
    NormalizeAnyLayout(batch.With(spec, prepared), part);
  }
}

Status CheckStyleIndexes(const NormSpec& spec, const Segment* segments, std::size_t count) {
  if (spec.style != Style::kIndex) return Status();
  for (std::size_t i = 0; i < count; ++i) {
    if (segments[i].spatial == 0) continue;
    for (std::int64_t n = 0; n < segments[i].samples; ++n) {
      const auto index = LoadUnaligned<std::int64_t>(segments[i].style_index, n);
      if (index >= 0 && index < spec.styles) continue;
      return InvalidArgument("segments[" + std::to_string(i) + "].style_index[" +
                             std::to_string(n) + "]: " + std::to_string(index) +
                             ", wanted a row of the table, 0 to " +
                             std::to_string(spec.styles - 1));
    }
  }
  return Status();
}

}  // namespace normd::norm::cpu
