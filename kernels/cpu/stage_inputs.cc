#include "kernels/cpu/stage_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/stage_loops.h"

namespace normd::norm::cpu {
namespace {

// Channels that are worked out together.
constexpr std::int64_t kRunChannels = 4096;

template <class T>
T LoadUnaligned(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

// Makes the factors and offsets of one segment.
template <class Acc>
class Modulation {
 public:
  Modulation(const Batch& batch, const NormParams& params, const Segment& segment)
      : batch_(batch),
        spec_(batch.spec),
        segment_(segment),
        channels_(batch.spec.channels),
        table_rows_(batch.spec.styles > 0 ? batch.spec.styles : 1),
        gamma_(params.gamma, table_rows_ * channels_),
        beta_(params.beta, table_rows_ * channels_) {}

  void Make(ChannelArray<Acc>* factor, ChannelArray<Acc>* offset) const {
    const bool per_sample = spec_.style != Style::kNone || spec_.scale || spec_.shift;
    const bool scales = gamma_.present() || spec_.scale || spec_.style == Style::kTensor;
    const bool shifts = beta_.present() || spec_.shift || spec_.style == Style::kTensor;
    Acc* const factors = scales ? factor->Resize(segment_.samples, channels_, per_sample) : nullptr;
    Acc* const offsets = shifts ? offset->Resize(segment_.samples, channels_, per_sample) : nullptr;
    if (!scales && !shifts) return;
    const std::int64_t samples = per_sample ? segment_.samples : 1;
    const Bases shared = spec_.style == Style::kNone ? BasesOf(0, 0, channels_) : Bases();
    batch_.parallel.For(samples, 1 + kTaskElements / channels_,
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t n = begin; n < end; ++n) {
                            MakeSample(n, shared, At(factors, n), At(offsets, n));
                          }
                        });
  }

 private:
  Acc* At(Acc* values, std::int64_t n) const {
    return values == nullptr ? nullptr : values + n * channels_;
  }

  // Of a run of channels, before the sample's scale and shift.
  struct Bases {
    std::vector<double> factor;
    std::vector<double> offset;
  };

  // Elements [first, first + count) of an array, in the accumulation type; none of one that is
  // null.
  std::vector<Acc> Read(const void* data, std::int64_t first, std::int64_t count) const {
    if (data == nullptr) return {};
    std::vector<Acc> values(static_cast<std::size_t>(count));
    InputRun run;
    run.x = static_cast<const char*>(data) + first * static_cast<std::int64_t>(SizeOf(spec_.dtype));
    run.count = count;
    StageLoopsFor(spec_.dtype).read(run, values.data());
    return values;
  }

  // Those of sample n's channels [first, first + count), without a style tensor.
  Bases BasesOf(std::int64_t n, std::int64_t first, std::int64_t count) const {
    const std::vector<Acc> weights = Read(segment_.style_weights, n * spec_.styles, spec_.styles);
    Bases bases;
    bases.factor.reserve(static_cast<std::size_t>(count));
    bases.offset.reserve(static_cast<std::size_t>(count));
    for (std::int64_t c = first; c < first + count; ++c) {
      bases.factor.push_back(Gamma(n, c, weights));
      bases.offset.push_back(Beta(n, c, weights));
    }
    return bases;
  }

  // `shared` are all samples' without a style.
  void MakeSample(std::int64_t n, const Bases& shared, Acc* factors, Acc* offsets) const {
    Bases own;
    if (spec_.style == Style::kTensor) {
      TensorStyle(n, &own.offset, &own.factor);
    } else if (spec_.style != Style::kNone) {
      own = BasesOf(n, 0, channels_);
    }
    const Bases& bases = spec_.style == Style::kNone ? shared : own;
    for (std::int64_t first = 0; first < channels_; first += kRunChannels) {
      const std::int64_t count = std::min(kRunChannels, channels_ - first);
      const std::vector<Acc> scale = Read(segment_.scale, n * channels_ + first, count);
      const std::vector<Acc> shift = Read(segment_.shift, n * channels_ + first, count);
      const auto modulated = [&](const std::vector<double>& base, std::int64_t i) {
        const double value = base[static_cast<std::size_t>(first + i)];
        if (scale.empty()) return value;
        return value *
               (spec_.scale_offset + static_cast<double>(scale[static_cast<std::size_t>(i)]));
      };
      for (std::int64_t i = 0; factors != nullptr && i < count; ++i) {
        factors[first + i] = static_cast<Acc>(modulated(bases.factor, i));
      }
      for (std::int64_t i = 0; offsets != nullptr && i < count; ++i) {
        const double offset = modulated(bases.offset, i);
        offsets[first + i] = static_cast<Acc>(
            shift.empty() ? offset
                          : offset + static_cast<double>(shift[static_cast<std::size_t>(i)]));
      }
    }
  }

  double Gamma(std::int64_t n, std::int64_t c, const std::vector<Acc>& weights) const {
    return gamma_.present() ? spec_.weight_offset + OfTable(gamma_, n, c, weights) : 1;
  }
  double Beta(std::int64_t n, std::int64_t c, const std::vector<Acc>& weights) const {
    return beta_.present() ? OfTable(beta_, n, c, weights) : 0;
  }

  double OfTable(const Param& table, std::int64_t n, std::int64_t c,
                 const std::vector<Acc>& weights) const {
    if (spec_.style == Style::kIndex) {
      // CheckStyleIndexes has seen to the range, unless somebody writes to the memory meanwhile.
      const auto k = std::clamp<std::int64_t>(LoadUnaligned<std::int64_t>(segment_.style_index, n),
                                              0, spec_.styles - 1);
      return table.At(k * channels_ + c, 0);
    }
    if (spec_.style == Style::kNone) return table.At(c, 0);
    double sum = 0;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      sum += static_cast<double>(weights[k]) *
             table.At(static_cast<std::int64_t>(k) * channels_ + c, 0);
    }
    return sum;
  }

  // The mean and the deviation of each channel of the sample's style tensor.
  void TensorStyle(std::int64_t n, std::vector<double>* means,
                   std::vector<double>* deviations) const {
    const std::int64_t count = segment_.style_spatial;
    means->resize(static_cast<std::size_t>(channels_));
    deviations->resize(static_cast<std::size_t>(channels_));
    const auto bytes = static_cast<std::int64_t>(SizeOf(spec_.dtype));
    const char* const sample =
        static_cast<const char*>(segment_.style_tensor) + n * channels_ * count * bytes;
    if (spec_.layout == Layout::kChannelsLast) {
      batch_.kernels->channel_moments({sample, count, channels_}, true, means->data(),
                                      deviations->data());
    } else {
      for (std::int64_t c = 0; c < channels_; ++c) {
        const Moments moments = batch_.kernels->moments(sample + c * count * bytes, count, true);
        (*means)[static_cast<std::size_t>(c)] = moments.mean;
        (*deviations)[static_cast<std::size_t>(c)] = moments.m2;
      }
    }
    for (double& value : *deviations) {
      value = std::sqrt(value / static_cast<double>(count) + spec_.eps);
    }
  }

  const Batch& batch_;
  const NormSpec& spec_;
  const Segment& segment_;
  const std::int64_t channels_;
  const std::int64_t table_rows_;
  const Param gamma_;
  const Param beta_;
};

}  // namespace

template <class Acc>
StageInputs<Acc>::StageInputs(const Batch& batch, const NormParams& params,
                              const Segment& segment) {
  Modulation<Acc>(batch, params, segment).Make(&factor, &offset);
  const std::int64_t channels = batch.spec.channels;
  if (params.input_bias.data != nullptr) {
    const Param bias(params.input_bias, channels);
    Acc* const values = input_bias.Resize(1, channels, false);
    for (std::int64_t c = 0; c < channels; ++c) values[c] = static_cast<Acc>(bias.At(c, 0));
  }
  if (batch.spec.gate) {
    InputRun run;
    run.x = segment.gate;
    run.count = segment.samples * channels;
    StageLoopsFor(batch.spec.dtype).read(run, gate.Resize(segment.samples, channels, true));
  }
}

template struct StageInputs<float>;
template struct StageInputs<double>;

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
