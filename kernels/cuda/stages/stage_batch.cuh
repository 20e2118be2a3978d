// The rows of one launch of the stages' kernels: the spec, the parameters and the segments in the
// form of kernel parameters.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_BATCH_CUH_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_BATCH_CUH_

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/norm.h"

namespace normd::norm::cuda {

// Fields that every row reads come first, here and in StageBatch: they share the first cache lines
// of constant memory.
struct StageSegment {
  const char* x;
  char* y;
  const char* residual;
  char* residual_out;
  std::int64_t row_bytes;
  std::int64_t elements;  // In a row.
  void* mean_out;
  void* rstd_out;
  std::uint32_t end_row;  // Rows of the launch up to and including this segment's.
  // Rows per group of a sample. For positions.cu: vectors per group, or tiles.
  Divisor positions;
  const char* other;
  const void* gate;
  const void* scale;
  const void* shift;
  const void* style;  // style_index, style_weights or style_tensor
  float* scale_out;
  std::int64_t spatial;
  std::int64_t style_spatial;
  std::int64_t channel_run;
  Divisor run;  // channel_run; valid if elements < 2^31.
  // With StageBatch::run_rows: rows that share factors, runs of them, and runs of the launch up to
  // and including this segment's.
  std::uint32_t shared_rows;
  Divisor runs;
  std::uint32_t end_run;
  std::uint32_t groups;  // In all samples; for positions.cu and position_slabs.cu.
};

// RowPlaces::kMixedRuns: the alternating runs of channels and positions of NormSpec and Segment.
struct RunDivisors {
  static constexpr int kRuns = 4;
  Divisor channels[kRuns];
  Divisor positions[kRuns];

  // The distance in elements from a sample's first element to the channel's at the first position.
  __device__ std::int64_t OfChannel(std::uint32_t channel) const { return Place<true>(channel); }
  // The distance to the first channel's at the position.
  __device__ std::int64_t OfPosition(std::uint32_t position) const {
    return Place<false>(position);
  }

 private:
  template <bool kChannels>
  __device__ std::int64_t Place(std::uint32_t index) const {
    std::int64_t place = 0;
    std::int64_t stride = 1;
#pragma unroll
    for (int i = kRuns - 1; i >= 0; --i) {
      if (kChannels) stride *= positions[i].value();
      const Divisor& run = kChannels ? channels[i] : positions[i];
      const std::uint32_t rest = run.Divide(index);
      place += (index - rest * run.value()) * stride;
      index = rest;
      stride *= run.value();
      if (!kChannels) stride *= channels[i].value();
    }
    return place;
  }
};

inline constexpr int kMaxStageSegments = 19;

// A kernel parameter. Rows are numbered in memory order, or, if they interleave, through samples,
// groups and positions.
struct StageBatch {
  int segment_count;
  std::uint32_t rows;  // Below 2^31.
  int run_rows;        // Rows of shared factors that a block takes in sequence.
  Divisor groups;
  std::int64_t channels_per_group;
  ParamVector gamma;
  ParamVector beta;
  Constant eps;
  Constant weight_offset;
  Constant quantization_factor;  // The reciprocal of a static scale.
  DType dtype;
  Statistics statistics;
  Activation activation;
  Combine combine_input;
  Combine combine_output;
  Style style;
  Quantization quantization;
  QuantizationScale quantization_scale;
  RowPlaces places;
  bool style_channels_last;  // The second tensor has its channels last.
  bool positions_outside;    // Rows lie in the order of positions, groups.
  bool aligned;              // Rows are contiguous, and begin and end at multiples of 16 bytes.
  bool residual;
  bool residual_out;
  bool gate;
  bool scale;
  bool shift;
  bool affine;           // The normalized values are scaled or shifted.
  bool scaled_first;     // Scaled by gamma before rstd: ScalesFirst of stage_plan.h.
  bool only_statistics;  // The statistics of x are the only results.
  bool deviations;       // With only_statistics: rstd_out takes sqrt(variance + eps).
  bool has_gaps;         // Between samples; in kernels that TakesGaps allows.
  std::int64_t channels;
  ParamVector input_bias;
  ParamVector mean;
  ParamVector variance;
  std::int64_t styles;
  Constant leaky_slope;
  Constant scale_offset;
  RunDivisors runs;  // With RowPlaces::kMixedRuns, for every segment.
  StageSegment segments[kMaxStageSegments];
  // With has_gaps: the bytes between two samples.
  std::int64_t x_gap;
  std::int64_t y_gap;
};
static_assert(sizeof(StageBatch) <= 4000, "kernel parameters hold 4096 bytes");

struct StageRow {
  const StageSegment* segment;
  std::int64_t begin;          // Its first element in x.
  std::int64_t first_channel;  // The first channel of its group.
  std::int64_t sample;
  std::int64_t number;  // In the segment, in the order of the contract.
};

__device__ inline StageRow FindStageRow(const StageBatch& batch, std::uint32_t index) {
  int found = 0;
  while (index >= batch.segments[found].end_row) ++found;
  const StageSegment& segment = batch.segments[found];
  const std::uint32_t local = index - (found == 0 ? 0 : batch.segments[found - 1].end_row);
  const std::uint32_t positions = segment.positions.value();
  const std::uint32_t groups = batch.groups.value();
  std::uint32_t sample, group, position;
  if (batch.positions_outside) {
    const std::uint32_t outer = batch.groups.Divide(local);
    group = local - outer * groups;
    sample = segment.positions.Divide(outer);
    position = outer - sample * positions;
  } else {
    const std::uint32_t outer = segment.positions.Divide(local);
    position = local - outer * positions;
    sample = batch.groups.Divide(outer);
    group = outer - sample * groups;
  }
  StageRow row;
  row.segment = &segment;
  row.sample = sample;
  row.first_channel = group * batch.channels_per_group;
  row.number = (std::int64_t{sample} * groups + group) * positions + position;
  if (batch.places == RowPlaces::kTogether) {
    row.begin = local * segment.elements;
  } else if (batch.places == RowPlaces::kPositions) {
    row.begin = (sample * batch.channels + row.first_channel) * segment.spatial + position;
  } else {
    row.begin = sample * segment.spatial * batch.channels + row.first_channel;
    if (batch.places == RowPlaces::kMixedRuns) row.begin += batch.runs.OfPosition(position);
  }
  return row;
}

// Where x and y would begin if no gaps preceded the row's sample.
template <Samples kSamples>
__device__ inline const char* XOf(const StageBatch& batch, const StageRow& row) {
  return row.segment->x + (kSamples == Samples::kBetweenGaps ? row.sample * batch.x_gap : 0);
}
template <Samples kSamples>
__device__ inline char* YOf(const StageBatch& batch, const StageRow& row) {
  return row.segment->y + (kSamples == Samples::kBetweenGaps ? row.sample * batch.y_gap : 0);
}

// Element `element` of a row among those of x.
__device__ inline std::int64_t PlaceOf(const StageBatch& batch, const StageRow& row,
                                       std::int64_t element) {
  if (batch.places == RowPlaces::kTogether) return row.begin + element;
  if (batch.places == RowPlaces::kPositions) return row.begin + element * row.segment->spatial;
  if (batch.places == RowPlaces::kMixedRuns) {
    return row.begin + batch.runs.OfChannel(static_cast<std::uint32_t>(element));
  }
  const std::int64_t position = element / batch.channels_per_group;
  return row.begin + position * batch.channels + (element - position * batch.channels_per_group);
}

// The element's channel in the row's group.
__device__ inline std::int64_t ChannelOf(const StageBatch& batch, const StageRow& row,
                                         std::int64_t element) {
  if (batch.channels_per_group == 1) return 0;
  if (batch.places == RowPlaces::kChannelsLast) return element % batch.channels_per_group;
  return row.segment->channel_run == 1 ? element : element / row.segment->channel_run;
}

// The blocks of a row that have scales of their own.
__device__ inline std::int64_t QuantizationBlocks(const StageRow& row) {
  return (row.segment->elements + kQuantizationBlock - 1) / kQuantizationBlock;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_BATCH_CUH_
