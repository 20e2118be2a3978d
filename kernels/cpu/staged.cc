// The choice of a way for what is not plain: where only the parameters differ from sample to
// sample, or only what a row is called, the specialised kernels; else stage by stage.

#include "kernels/cpu/staged.h"

#include <algorithm>
#include <type_traits>

namespace normd::norm::cpu {
namespace {

// `spec` without what makes gamma and beta the samples' own.
NormSpec WithoutModulation(const NormSpec& spec) {
  NormSpec plain = spec;
  plain.style = Style::kNone;
  plain.styles = 0;
  plain.scale = false;
  plain.shift = false;
  plain.weight_offset = 0;
  if (plain.statistics == Statistics::kRootOfSquares) plain.statistics = Statistics::kMeanSquare;
  return plain;
}

bool IsModulated(const NormSpec& spec) {
  return spec.style != Style::kNone || spec.scale || spec.shift;
}

// Positions of channels that are adjacent are samples of one position.
bool HasPositionsAsSamples(const NormSpec& spec, const Segment& segment) {
  return spec.rows == Rows::kPosition && !IsModulated(spec) && !spec.gate && spec.groups == 1 &&
         (spec.layout == Layout::kChannelsLast || segment.spatial == 1);
}

template <class Acc>
ParamVector AccVector(const Acc* values) {
  return {values, sizeof(Acc) == 8 ? DType::kFloat64 : DType::kFloat32};
}

// What the specialised kernels take of a sample, or of all samples where these lie channel by
// channel: then they are one sample of as many channels more. A sample of rows at positions is as
// many samples of one position.
template <class Acc>
void NormalizeModulated(const Stages<Acc>& stages) {
  const Segment& segment = stages.segment;
  NormSpec spec = WithoutModulation(stages.spec);
  spec.statistics = stages.spec.statistics;
  const bool of_positions = spec.rows == Rows::kPosition;
  const bool adjacent = !of_positions && (spec.layout == Layout::kChannelsFirst ||
                                          segment.spatial == 1 || spec.channels == 1);
  const std::int64_t step = adjacent ? segment.samples : 1;
  const std::int64_t sample_elements = spec.channels * segment.spatial;
  const std::int64_t sample_rows = of_positions ? segment.spatial : spec.groups;
  spec.rows = Rows::kGroup;
  if (adjacent) spec.layout = Layout::kChannelsFirst;
  spec.channels *= step;
  spec.groups *= step;
  const auto at = [](auto* data, std::int64_t offset) {
    return data == nullptr ? nullptr : data + offset;
  };
  const auto normalize = [&](const Batch& batch, std::int64_t n) {
    const NormParams source{
        AccVector(stages.inputs.factor.Of(n)), AccVector(stages.inputs.offset.Of(n)), {}, {}, {}};
    Params params(spec, source);
    if (segment.spatial == 1 || of_positions) params.PrepareElements(spec.dtype);
    const std::int64_t offset = n * sample_elements * stages.element_bytes;
    Segment sample;
    sample.x = at(static_cast<const char*>(segment.x), offset);
    sample.y = at(static_cast<char*>(segment.y), offset);
    sample.residual = at(static_cast<const char*>(segment.residual), offset);
    sample.residual_out = at(static_cast<char*>(segment.residual_out), offset);
    sample.mean_out = at(static_cast<Acc*>(segment.mean_out), n * sample_rows);
    sample.rstd_out = at(static_cast<Acc*>(segment.rstd_out), n * sample_rows);
    sample.samples = of_positions ? segment.spatial : 1;
    sample.spatial = of_positions ? 1 : segment.spatial;
    NormalizePlain(batch.With(spec, params), sample);
  };
  if (adjacent || segment.samples < stages.batch.parallel.threads()) {
    for (std::int64_t n = 0; n < segment.samples; n += step) normalize(stages.batch, n);
    return;
  }
  Batch serial = stages.batch;
  serial.parallel = Parallel(1);
  stages.batch.parallel.For(segment.samples, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) normalize(serial, n);
  });
}

template <class Acc>
void NormalizeStages(const Batch& batch, const NormParams& params, const Segment& segment) {
  const Stages<Acc> stages(batch, params, segment);
  const NormSpec& spec = batch.spec;
  NormSpec plain = WithoutModulation(spec);
  // One group at each position of channels that lie together.
  if (spec.groups == 1 && (spec.layout == Layout::kChannelsLast || segment.spatial == 1)) {
    plain.rows = Rows::kGroup;
  }
  if (spec.statistics != Statistics::kGiven && IsPlain(plain, params)) {
    return NormalizeModulated(stages);
  }
  const bool one_position = segment.spatial == 1;
  const bool channels_adjacent = spec.layout == Layout::kChannelsLast && spec.channels > 1;
  const bool tiled = stages.given() ? one_position || channels_adjacent
                     : spec.rows == Rows::kGroup
                         ? channels_adjacent && !one_position
                         : spec.layout == Layout::kChannelsFirst && !one_position;
  if (tiled) {
    NormalizeStagedTiles(stages);
  } else {
    NormalizeStagedRows(stages);
  }
}

// Factors, offsets and gates are worked out for so many elements at a time for each thread, or for
// one sample: in the accumulation type they may be larger than the tensors, and a second-level
// cache keeps them. Larger arrays the C library would give back to the system after each call.
constexpr std::int64_t kMostModulated = 16 << 10;

}  // namespace

Segment SamplesOf(const NormSpec& spec, const Segment& segment, std::int64_t first,
                  std::int64_t count) {
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t acc = spec.dtype == DType::kFloat64 ? 8 : 4;
  const auto move = [first](auto*& data, std::int64_t sample_bytes) {
    using Pointer = std::remove_reference_t<decltype(data)>;
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    if (data == nullptr) return;
    data = reinterpret_cast<Pointer>(reinterpret_cast<Byte*>(data) + first * sample_bytes);
  };
  const std::int64_t sample = spec.channels * segment.spatial;
  const std::int64_t rows = RowsOfSample(spec, segment.spatial);
  std::int64_t scales = rows;
  if (spec.quantization_scale == QuantizationScale::kBlock) {
    scales *= (RowLength(spec, segment.spatial) + kQuantizationBlock - 1) / kQuantizationBlock;
  }
  Segment part = segment;
  part.samples = count;
  move(part.x, sample * element);
  move(part.y, sample * (spec.quantization == Quantization::kNone ? element : 1));
  move(part.residual, sample * element);
  move(part.residual_out, sample * element);
  move(part.other, sample * element);
  move(part.gate, spec.channels * element);
  move(part.scale, spec.channels * element);
  move(part.shift, spec.channels * element);
  move(part.style_index, static_cast<std::int64_t>(sizeof(std::int64_t)));
  move(part.style_weights, spec.styles * element);
  move(part.style_tensor, spec.channels * segment.style_spatial * element);
  move(part.mean_out, rows * acc);
  move(part.rstd_out, rows * acc);
  move(part.scale_out, scales * static_cast<std::int64_t>(sizeof(float)));
  return part;
}

namespace {

template <class Acc>
void NormalizeParts(const Batch& batch, const NormParams& params, const Segment& segment) {
  const NormSpec& spec = batch.spec;
  const std::int64_t most =
      batch.parallel.threads() * std::max<std::int64_t>(kMostModulated / spec.channels, 1);
  if ((!IsModulated(spec) && !spec.gate) || segment.samples <= most) {
    return NormalizeStages<Acc>(batch, params, segment);
  }
  // Tables of 16 bits are widened once for all parts.
  const std::int64_t table = spec.channels * std::max<std::int64_t>(spec.styles, 1);
  const Param gamma(params.gamma, table);
  const Param beta(params.beta, table);
  NormParams widened = params;
  widened.gamma = gamma.AsWidened(params.gamma);
  widened.beta = beta.AsWidened(params.beta);
  for (std::int64_t first = 0; first < segment.samples; first += most) {
    const std::int64_t count = std::min(most, segment.samples - first);
    NormalizeStages<Acc>(batch, widened, SamplesOf(spec, segment, first, count));
  }
}

}  // namespace

void NormalizeStaged(const Batch& batch, const NormParams& params, const Segment& segment) {
  if (HasPositionsAsSamples(batch.spec, segment)) {
    NormSpec spec = batch.spec;
    spec.rows = Rows::kGroup;
    Segment rows = segment;
    rows.samples *= rows.spatial;
    rows.spatial = 1;
    if (!IsPlain(WithoutModulation(spec), params)) {
      return NormalizeStaged(batch.With(spec, batch.params), params, rows);
    }
    Params prepared(spec, params);
    prepared.PrepareElements(spec.dtype);
    return NormalizePlain(batch.With(spec, prepared), rows);
  }
  if (batch.spec.dtype == DType::kFloat64) {
    NormalizeParts<double>(batch, params, segment);
  } else {
    NormalizeParts<float>(batch, params, segment);
  }
}

}  // namespace normd::norm::cpu
