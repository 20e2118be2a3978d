// The rows of one launch: the segments and parameters in the form of kernel parameters.

#ifndef NORMD_KERNELS_CUDA_ROW_BATCH_CUH_
#define NORMD_KERNELS_CUDA_ROW_BATCH_CUH_

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/norm.h"

namespace normd::norm::cuda {

// Division of a number below 2^31 by a constant, as a multiplication (Granlund and Montgomery,
// "Division by Invariant Integers using Multiplication", 1994).
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(std::uint32_t value) : value_(value) {
    while ((std::uint64_t{1} << shift_) < value) ++shift_;
    const std::uint64_t power = std::uint64_t{1} << shift_;
    factor_ = static_cast<std::uint32_t>(((power - value) << 32) / value + 1);
  }
  __device__ std::uint32_t Divide(std::uint32_t dividend) const {
    return (__umulhi(dividend, factor_) + dividend) >> shift_;
  }
  __host__ __device__ std::uint32_t value() const { return value_; }

 private:
  std::uint32_t value_ = 1;
  std::uint32_t factor_ = 1;
  std::uint32_t shift_ = 0;
};

struct RowSegment {
  const char* x;
  char* y;
  std::int64_t elements;  // In a row.
  std::int64_t row_bytes;
  std::int64_t spatial;     // Elements that share a channel.
  std::uint32_t end_row;    // Rows of the launch up to and including this segment's.
  Divisor spatial_divisor;  // Valid if elements < 2^31.
  // With Lowering::kModulated: [samples, channels] each in x's type, or gamma and beta as if they
  // were one sample's; else null.
  const char* scale;
  const char* shift;    // Null if absent.
  Divisor sample_rows;  // Rows of a sample.
  void* mean_out;       // As Segment's, from the segment's first row on.
  void* rstd_out;
};

// How the samples of a launch lie. A template argument, because kernels that look for gaps at run
// time spill more registers.
enum class Samples { kTogether, kBetweenGaps };

// As many segments as fit, with the rest, into the 4 KiB of kernel parameters that every device
// has.
inline constexpr int kMaxRowSegments = 36;

// A kernel parameter. Rows are numbered through the segments, samples and groups of a launch. The
// fields that a row needs first are adjacent and in front: constant memory is loaded line by line.
struct RowBatch {
  int segment_count;
  std::uint32_t rows;  // Below 2^31.
  Divisor groups;
  bool has_gaps;  // Between samples.
  std::int64_t channels_per_group;
  ParamVector gamma;
  ParamVector beta;
  Constant eps;
  Constant leaky_slope;
  Activation activation;
  bool centered;        // Statistics::kMeanVariance.
  bool statistics_out;  // A segment may have mean_out or rstd_out.
  Statistics norm;      // In kernels of RowSums::kNorms.
  float scale_offset;   // With Lowering::kModulated; or the weights' offset.
  RowSegment segments[kMaxRowSegments];
  // With has_gaps: the bytes between two samples, and the rows of a sample.
  std::int64_t x_gap;
  std::int64_t y_gap;
  Divisor gap_rows;
};
static_assert(sizeof(RowBatch) <= 4000, "kernel parameters hold 4096 bytes");

struct Row {
  const char* x;
  char* y;
  std::int64_t elements;
  std::int64_t bytes;
  std::int64_t spatial;
  Divisor spatial_divisor;
  std::int64_t first_channel;
  // The first channel in the row's sample, with Lowering::kModulated.
  const char* scale;
  const char* shift;
};

// Row `local` of a segment.
__device__ inline Row RowOf(const RowBatch& batch, const RowSegment& segment, std::uint32_t local) {
  const std::uint32_t group = local - batch.groups.Divide(local) * batch.groups.value();
  const std::int64_t offset = static_cast<std::int64_t>(local) * segment.row_bytes;
  // A modulated row is all of a group's channels.
  const std::int64_t of_channels =
      (std::int64_t{segment.sample_rows.Divide(local)} * batch.groups.value() + group) *
      segment.row_bytes;
  return {segment.x + offset,
          segment.y + offset,
          segment.elements,
          segment.row_bytes,
          segment.spatial,
          segment.spatial_divisor,
          group * batch.channels_per_group,
          segment.scale + of_channels,
          segment.shift == nullptr ? nullptr : segment.shift + of_channels};
}

// The segment of row `index`; turns the index into the row's number in it.
__device__ inline const RowSegment& FindSegment(const RowBatch& batch, std::uint32_t* index) {
  if (batch.segment_count == 1) return batch.segments[0];
  int low = 0;
  for (int high = batch.segment_count - 1; low < high;) {
    const int middle = (low + high) / 2;
    if (*index < batch.segments[middle].end_row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low > 0) *index -= batch.segments[low - 1].end_row;
  return batch.segments[low];
}

template <Samples kSamples = Samples::kTogether>
__device__ inline Row FindRow(const RowBatch& batch, std::uint32_t index) {
  const RowSegment& segment = FindSegment(batch, &index);
  Row row = RowOf(batch, segment, index);
  if constexpr (kSamples == Samples::kBetweenGaps) {
    const std::int64_t sample = batch.gap_rows.Divide(index);
    row.x += sample * batch.x_gap;
    row.y += sample * batch.y_gap;
  }
  return row;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROW_BATCH_CUH_
