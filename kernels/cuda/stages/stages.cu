// From segments to the batches of rows that the kernels of this folder take.

#include <algorithm>
#include <limits>

#include "kernels/cuda/stages/stage_launch.cuh"
#include "kernels/cuda/stages/stages.h"

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

Constant MakeConstant(double wide, float narrow) {
  Constant constant(wide);
  constant.narrow = narrow;
  return constant;
}

StageBatch EmptyStageBatch(const Launch& launch) {
  const NormSpec& spec = launch.spec;
  const StageRows rows = RowsOfStages(spec, launch.segments[0].spatial);
  StageBatch batch = {};
  batch.groups = Divisor(static_cast<std::uint32_t>(rows.groups));
  batch.channels = spec.channels;
  batch.channels_per_group = spec.channels / rows.groups;
  batch.input_bias = launch.params.input_bias;
  batch.gamma = launch.params.gamma;
  batch.beta = launch.params.beta;
  batch.mean = launch.params.mean;
  batch.variance = launch.params.variance;
  batch.styles = spec.styles;
  batch.eps = Constant(spec.eps);
  batch.leaky_slope = Constant(spec.leaky_slope);
  batch.weight_offset = Addend(spec.weight_offset);
  batch.scale_offset = Addend(spec.scale_offset);
  if (spec.output_scale != 0) {
    // A scale is a float for every type.
    const auto scale = static_cast<float>(spec.output_scale);
    batch.quantization_factor = MakeConstant(1 / static_cast<double>(scale), 1 / scale);
  }
  batch.dtype = spec.dtype;
  batch.statistics = spec.statistics;
  batch.activation = spec.activation;
  batch.combine_input = spec.combine_input;
  batch.combine_output = spec.combine_output;
  batch.style = spec.style;
  batch.quantization = spec.quantization;
  batch.quantization_scale = spec.quantization_scale;
  batch.places = rows.places;
  const bool last = spec.layout == Layout::kChannelsLast;
  batch.style_channels_last = last && spec.channels > 1;
  // Segments of one position may share the batch with others, and fit either order.
  batch.positions_outside = rows.places == RowPlaces::kTogether &&
                            (spec.rows == Rows::kPosition || spec.statistics == Statistics::kGiven);
  if (rows.places == RowPlaces::kMixedRuns) {
    static_assert(RunDivisors::kRuns == kMostRuns);
    const RunSizes& positions = launch.segments[0].spatial_runs;
    for (std::size_t i = 0; i < kMostRuns; ++i) {
      batch.runs.channels[i] = Divisor(static_cast<std::uint32_t>(spec.channel_runs[i]));
      batch.runs.positions[i] = Divisor(static_cast<std::uint32_t>(positions[i]));
    }
  }
  batch.residual = spec.residual;
  batch.residual_out = spec.residual_out;
  batch.gate = spec.gate;
  batch.scale = spec.scale;
  batch.shift = spec.shift;
  batch.scaled_first = ScalesFirst(spec) && launch.params.beta.data == nullptr &&
                       launch.params.input_bias.data == nullptr;
  batch.affine = launch.params.gamma.data != nullptr || launch.params.beta.data != nullptr ||
                 spec.scale || spec.shift || spec.style == Style::kTensor;
  return batch;
}

template <typename Byte>
Byte* SkipBytes(Byte* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : data + bytes;
}

std::int64_t StyleBytes(const NormSpec& spec, const Segment& segment) {
  switch (spec.style) {
    case Style::kIndex: return 8;
    case Style::kMix: return spec.styles * static_cast<std::int64_t>(SizeOf(spec.dtype));
    case Style::kTensor:
      return spec.channels * segment.style_spatial * static_cast<std::int64_t>(SizeOf(spec.dtype));
    default: return 0;
  }
}

const void* StyleOf(const NormSpec& spec, const Segment& segment) {
  switch (spec.style) {
    case Style::kIndex: return segment.style_index;
    case Style::kMix: return segment.style_weights;
    case Style::kTensor: return segment.style_tensor;
    default: return nullptr;
  }
}

// The segment's samples from `done` on.
StageSegment EntryOf(const NormSpec& spec, const Segment& segment, const StageRows& rows,
                     std::int64_t done) {
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t accumulator = spec.dtype == DType::kFloat64 ? 8 : 4;
  const bool quantized = spec.quantization != Quantization::kNone;
  const SampleGaps gaps = GapsOf(spec, segment);
  const std::int64_t elements = done * spec.channels * segment.spatial;
  const std::int64_t channels = done * spec.channels * element;
  const std::int64_t skipped_rows = done * rows.rows_of_sample();
  const std::int64_t scales = spec.quantization_scale == QuantizationScale::kBlock
                                  ? (rows.elements + kQuantizationBlock - 1) / kQuantizationBlock
                                  : 1;
  StageSegment entry = {};
  entry.x = SkipBytes(static_cast<const char*>(segment.x), (elements + done * gaps.x) * element);
  entry.y = SkipBytes(static_cast<char*>(segment.y),
                      (elements + done * gaps.y) * (quantized ? 1 : element));
  entry.residual = SkipBytes(static_cast<const char*>(segment.residual), elements * element);
  entry.residual_out = SkipBytes(static_cast<char*>(segment.residual_out), elements * element);
  entry.other = SkipBytes(static_cast<const char*>(segment.other), elements * element);
  entry.gate = SkipBytes(static_cast<const char*>(segment.gate), channels);
  entry.scale = SkipBytes(static_cast<const char*>(segment.scale), channels);
  entry.shift = SkipBytes(static_cast<const char*>(segment.shift), channels);
  entry.style =
      SkipBytes(static_cast<const char*>(StyleOf(spec, segment)), done * StyleBytes(spec, segment));
  entry.mean_out = SkipBytes(static_cast<char*>(segment.mean_out), skipped_rows * accumulator);
  entry.rstd_out = SkipBytes(static_cast<char*>(segment.rstd_out), skipped_rows * accumulator);
  if (segment.scale_out != nullptr) entry.scale_out = segment.scale_out + skipped_rows * scales;
  entry.spatial = segment.spatial;
  entry.style_spatial = segment.style_spatial;
  entry.elements = rows.elements;
  entry.row_bytes = rows.elements * element;
  entry.channel_run = rows.channel_run;
  if (rows.elements <= kMaxRows) entry.run = Divisor(static_cast<std::uint32_t>(rows.channel_run));
  entry.positions = Divisor(static_cast<std::uint32_t>(rows.positions));
  return entry;
}

// Whether rows are contiguous at multiples of 16 bytes in all tensors of x's shape and, in a
// quantized y, at multiples of a vector's number of elements.
bool IsAligned(const StageBatch& batch) {
  if (batch.places != RowPlaces::kTogether) return false;
  const auto element = static_cast<std::int64_t>(SizeOf(batch.dtype));
  const bool quantized = batch.quantization != Quantization::kNone;
  auto bits = static_cast<std::uintptr_t>(batch.x_gap);
  auto y_bits = static_cast<std::uintptr_t>(batch.y_gap);
  if (!quantized) bits |= y_bits;
  for (int i = 0; i < batch.segment_count; ++i) {
    const StageSegment& segment = batch.segments[i];
    for (const char* tensor : {segment.x, segment.residual,
                               static_cast<const char*>(segment.residual_out), segment.other}) {
      bits |= reinterpret_cast<std::uintptr_t>(tensor);
    }
    bits |= static_cast<std::uintptr_t>(segment.elements * element);
    (quantized ? y_bits : bits) |= reinterpret_cast<std::uintptr_t>(segment.y);
  }
  return bits % kVectorBytes == 0 && y_bits % static_cast<std::uintptr_t>(16 / element) == 0;
}

// Whether the kernel of these rows finds them between gaps. Those that do not are chosen whatever
// the addresses are.
bool TakesGaps(const Launch& launch, const StageBatch& batch) {
  return !TakesPositions(launch, batch) && !TakesMixedRuns(launch, batch) &&
         (TakesRaggedRows(launch, batch) || !TakesSlicedRows(launch, batch));
}

// Sets the gaps of the launch. False if its kernel does not find rows between them.
bool SetGaps(const Launch& launch, StageBatch* batch) {
  if (!launch.gaps.any()) return true;
  const Segment& first = launch.segments[0];
  batch->segments[0] = EntryOf(launch.spec, first, RowsOfStages(launch.spec, first.spatial), 0);
  if (!TakesGaps(launch, *batch)) return false;
  const auto element = static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
  batch->has_gaps = true;
  batch->x_gap = launch.gaps.x * element;
  batch->y_gap = launch.gaps.y * (launch.spec.quantization != Quantization::kNone ? 1 : element);
  return true;
}

// Calls enqueue(batch), which returns a cudaError_t, for batches that hold all rows of the launch.
template <typename Enqueue>
Status ForEachStageBatch(const Launch& launch, const char* what, StageBatch batch,
                         Enqueue enqueue) {
  const auto flush = [&]() -> Status {
    batch.aligned = IsAligned(batch);
    const cudaError_t error = enqueue(batch);
    batch.segment_count = 0;
    batch.rows = 0;
    return ToStatus(error, what);
  };
  // Without gaps in the batch, its samples are entries of their own.
  const std::int64_t most = SetGaps(launch, &batch) ? kMaxRows : 1;
  for (std::size_t i = 0; i < launch.count; ++i) {
    const Segment& segment = launch.segments[i];
    const StageRows rows = RowsOfStages(launch.spec, segment.spatial);
    for (std::int64_t done = 0; done < segment.samples;) {
      const std::int64_t samples =
          batch.segment_count == kMaxStageSegments
              ? 0
              : std::min({segment.samples - done, most,
                          (kMaxRows - batch.rows) / rows.rows_of_sample()});
      if (samples == 0 && batch.rows == 0) {
        return Status(StatusCode::kUnsupported, "spatial: 2^31 rows in a sample, wanted fewer");
      }
      if (samples == 0) {
        if (Status status = flush(); !status.ok()) return status;
        continue;
      }
      StageSegment& entry = batch.segments[batch.segment_count++];
      entry = EntryOf(launch.spec, segment, rows, done);
      batch.rows += static_cast<std::uint32_t>(samples * rows.rows_of_sample());
      entry.end_row = batch.rows;
      done += samples;
    }
  }
  return batch.rows == 0 ? Status() : flush();
}

cudaError_t LaunchStatisticsOf(const Launch& launch, const StageBatch& batch) {
  if (TakesSlicedRows(launch, batch)) return LaunchSlicedRows(launch, batch);
  return TakesRegisterRows(launch, batch) ? LaunchRegisterRows(launch, batch)
                                          : LaunchGeneralRows(launch, batch);
}

}  // namespace

cudaError_t PrepareStages(const DeviceLimits& limits) {
  for (const auto prepare : {PreparePositions, PrepareMixedRuns, PrepareSlicedRows}) {
    if (const cudaError_t error = prepare(limits); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

Status LaunchStages(const Launch& launch) {
  return ForEachStageBatch(launch, "stages", EmptyStageBatch(launch), [&](const StageBatch& batch) {
    if (TakesPositions(launch, batch)) return LaunchPositions(launch, batch);
    if (TakesMixedRuns(launch, batch)) return LaunchMixedRuns(launch, batch);
    if (TakesRaggedRows(launch, batch)) return LaunchRaggedRows(launch, batch);
    if (TakesSlicedRows(launch, batch)) return LaunchSlicedRows(launch, batch);
    if (TakesRegisterRows(launch, batch)) {
      return batch.scaled_first ? LaunchQuantizedRows(launch, batch)
                                : LaunchRegisterRows(launch, batch);
    }
    if (!batch.has_gaps && TakesOtherBlockRows(launch, batch)) {
      return LaunchSlicedRows(launch, batch);
    }
    return LaunchGeneralRows(launch, batch);
  });
}

Status LaunchStatistics(const Launch& launch) {
  StageBatch batch = EmptyStageBatch(launch);
  batch.only_statistics = true;
  return ForEachStageBatch(launch, "statistics", batch, [&](const StageBatch& part) {
    return LaunchStatisticsOf(launch, part);
  });
}

Status LaunchDeviations(const Launch& launch) {
  StageBatch batch = EmptyStageBatch(launch);
  batch.only_statistics = true;
  batch.deviations = true;
  return ForEachStageBatch(launch, "statistics of styles", batch, [&](const StageBatch& part) {
    return LaunchStatisticsOf(launch, part);
  });
}

}  // namespace normd::norm::cuda
