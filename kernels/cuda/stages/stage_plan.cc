#include "kernels/cuda/stages/stage_plan.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/stages/position_slabs_plan.h"

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kVectorBytes = 16;
constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kMostVectorsOfWarp = kLanes * kWarpMaxVectors;
constexpr std::int64_t kMostVectorsOfBlock = (64 << 10) / kVectorBytes;
constexpr std::int64_t kVectorsOfShortSlice = (32 << 10) / kVectorBytes;

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t ElementBytes(const NormSpec& spec) {
  return static_cast<std::int64_t>(SizeOf(spec.dtype));
}

bool HasPlainAffine(const NormSpec& spec) {
  return spec.style == Style::kNone && !spec.scale && !spec.shift && spec.weight_offset == 0;
}

// Whether a norm is all that is computed, of rows too long for a block that lie together: a cluster
// or the grid then holds them, or they are read twice, as rows of mean and variance are.
bool IsLongNorm(const NormSpec& spec, std::int64_t spatial, const PresentParams& params) {
  const StageRows rows = RowsOfStages(spec, spatial);
  return HasPlainAffine(spec) && !params.affine && spec.activation == Activation::kNone &&
         rows.places == RowPlaces::kTogether &&
         rows.elements > kMostVectorsOfBlock * (kVectorBytes / ElementBytes(spec));
}

// Whether x itself is normalized, by statistics of the specialised kernels, and y has its type.
bool IsFromXToY(const NormSpec& spec, std::int64_t spatial, const PresentParams& params) {
  return (spec.statistics <= Statistics::kGiven || IsLongNorm(spec, spatial, params)) &&
         !spec.residual && !params.input_bias && !spec.takes_other() &&
         spec.quantization == Quantization::kNone;
}

// Whether a factor and an offset per channel of a sample take at most a sixteenth of its bytes:
// workspaces are sized for that.
bool FactorsAreFew(const NormSpec& spec, std::int64_t spatial) {
  const std::int64_t accumulator = spec.dtype == DType::kFloat64 ? 8 : 4;
  return spatial * ElementBytes(spec) >= 16 * 2 * accumulator;
}

// The spec reduced to the stages of the specialised kernels.
NormSpec PlainSpec(const NormSpec& spec) {
  NormSpec plain;
  plain.statistics = spec.statistics;
  plain.dtype = spec.dtype;
  plain.layout = spec.layout;
  plain.channels = spec.channels;
  plain.groups = spec.groups;
  plain.eps = spec.eps;
  plain.activation = spec.activation;
  plain.leaky_slope = spec.leaky_slope;
  return plain;
}

// Whether the kernels of rows in a block take a sample's scale and shift in place of gamma and
// beta, or, if `weight_offset` is the only addition to a norm, gamma and beta as if they were a
// sample's. They do for rows of whole vectors, from those that a warp would hold to the longest.
bool ScalesAsSample(const NormSpec& spec, std::int64_t spatial, const PresentParams& params) {
  const bool together = (spatial == 1 && spec.layout != Layout::kMixedRuns) ||
                        (spec.rows == Rows::kPosition && spec.layout == Layout::kChannelsLast);
  const std::int64_t bytes = RowLength(spec, spatial) * ElementBytes(spec);
  const bool of_sample = spec.scale && spec.weight_offset == 0 && !params.affine;
  const bool of_elements = !spec.scale && !spec.shift && params.rows_type_gamma;
  return (of_sample || of_elements) && spec.style == Style::kNone &&
         spec.activation == Activation::kNone && spec.statistics != Statistics::kGiven &&
         spec.dtype != DType::kFloat64 && together && bytes % kVectorBytes == 0 &&
         bytes > kMostVectorsOfWarp * kVectorBytes && bytes <= kMostVectorsOfBlock * kVectorBytes;
}

// Whether sliced_rows.cu can compute a row.
bool SlicesRow(const NormSpec& spec, const StageRows& rows) {
  return SlicesRows(spec) && rows.places != RowPlaces::kPositions &&
         rows.places != RowPlaces::kMixedRuns &&
         rows.elements <= std::numeric_limits<std::int32_t>::max();
}

// The number of blocks over which a row of this many vectors is cut. Slices of up to 32 KiB leave
// room for four on a multiprocessor. Clusters of 16 are slower than slices of up to 64 KiB, so rows
// take them from 512 KiB on. 0: there are no clusters.
int SliceBlocks(std::int64_t vectors, const DeviceLimits& limits) {
  int blocks = 1;
  while (2 * blocks <= kMaxClusterBlocks && limits.resident_clusters[2 * blocks] > 0 &&
         CeilDiv(vectors, blocks) >
             (blocks < 8 ? kVectorsOfShortSlice : 2 * kVectorsOfShortSlice)) {
    blocks *= 2;
  }
  return blocks > 1 ? blocks : 0;
}

// Lanes per row of RowPlaces::kMixedRuns with this many vectors: as few as let neighbouring rows
// fill a sector of 32 bytes together, as long as a lane merges few chunks. 0: a row takes whole
// warps.
int LanesOfMixedRuns(std::int64_t element_bytes, std::int64_t vectors, int vectors_of_lane) {
  constexpr std::int64_t kMostChunks = 16;
  std::int64_t lanes = element_bytes;
  while (lanes > 1 && lanes >= 2 * vectors) lanes /= 2;
  while (lanes <= kLanes && vectors > kMostChunks * vectors_of_lane * lanes) lanes *= 2;
  return lanes <= kLanes ? static_cast<int>(lanes) : 0;
}

}  // namespace

Lowering LowerSegment(const NormSpec& spec, std::int64_t spatial, const PresentParams& params) {
  if (!IsFromXToY(spec, spatial, params)) return Lowering::kStages;
  if (HasPlainAffine(spec)) {
    if (spec.rows == Rows::kGroup) return Lowering::kPlain;
    const bool together = spec.layout == Layout::kChannelsLast || spatial == 1;
    return together ? Lowering::kPositions : Lowering::kStages;
  }
  if (ScalesAsSample(spec, spatial, params)) return Lowering::kModulated;
  const bool factors = spec.statistics != Statistics::kGiven && spec.rows == Rows::kGroup &&
                       spec.layout == Layout::kChannelsFirst && FactorsAreFew(spec, spatial);
  return factors ? Lowering::kSampleAffine : Lowering::kStages;
}

LoweredRows LowerRows(const NormSpec& spec, Lowering lowering, std::int64_t samples,
                      std::int64_t spatial) {
  LoweredRows lowered = {spec, samples, spatial};
  if (lowering != Lowering::kPositions && lowering != Lowering::kSampleAffine) return lowered;
  lowered.spec = PlainSpec(spec);
  if (lowering == Lowering::kPositions) {
    lowered.samples = samples * spatial;
    lowered.spatial = 1;
  } else {
    lowered.spec.channels = samples * spec.channels;
    lowered.spec.groups = samples * spec.groups;
    lowered.samples = 1;
  }
  return lowered;
}

StageRows RowsOfStages(const NormSpec& spec, std::int64_t spatial) {
  const bool first = spec.layout == Layout::kChannelsFirst || spec.channels == 1;
  StageRows rows;
  if (spec.statistics == Statistics::kGiven) {
    if (first && spatial > 1) {
      rows.groups = spec.channels;
      rows.elements = rows.channel_run = spatial;
    } else {
      rows.positions = spatial;
      rows.elements = spec.channels;
    }
    return rows;
  }
  rows.groups = spec.groups;
  rows.elements = RowLength(spec, spatial);
  if (spec.rows == Rows::kPosition) {
    rows.positions = spatial;
    if (spec.layout == Layout::kChannelsFirst && spatial > 1) rows.places = RowPlaces::kPositions;
    if (spec.layout == Layout::kMixedRuns) rows.places = RowPlaces::kMixedRuns;
  } else if (first || spatial == 1) {
    rows.channel_run = spatial;
  } else {
    rows.places = RowPlaces::kChannelsLast;
  }
  return rows;
}

bool ScalesFirst(const NormSpec& spec) {
  return spec.quantization != Quantization::kNone &&
         (spec.statistics == Statistics::kMeanSquare ||
          spec.statistics == Statistics::kRootOfSquares) &&
         !spec.residual && !spec.takes_other() && !spec.scale && !spec.shift &&
         spec.style == Style::kNone && spec.activation == Activation::kNone;
}

bool SlicesRows(const NormSpec& spec) {
  return spec.dtype != DType::kFloat64 && spec.statistics != Statistics::kGiven &&
         spec.style != Style::kTensor;
}

void PlanStages(const NormSpec& spec, std::int64_t spatial, const PresentParams& params,
                const DeviceLimits& limits, Plan* plan) {
  const StageRows rows = RowsOfStages(spec, spatial);
  *plan = Plan();
  plan->strategy = Strategy::kStages;
  plan->places = rows.places;
  if (rows.places == RowPlaces::kPositions && !params.input_bias) {
    plan->slabs = SlabsOf(spec, spatial, limits);
  }
  const std::int64_t vectors = CeilDiv(rows.elements, kVectorBytes / ElementBytes(spec));
  if (vectors > kMostVectorsOfBlock) {
    plan->blocks_per_row = SlicesRow(spec, rows) ? SliceBlocks(vectors, limits) : 0;
    if (plan->blocks_per_row > 0) {
      plan->warps = CeilDiv(vectors, plan->blocks_per_row) > kVectorsOfShortSlice ? 2 * kSliceWarps
                                                                                  : kSliceWarps;
      plan->vectors = kFewVectors;
      return;
    }
  }
  const bool few = spec.residual || params.input_bias || spec.takes_other() ||
                   spec.quantization != Quantization::kNone || vectors <= kLanes * kFewVectors;
  plan->vectors = few ? kFewVectors : kManyVectors;
  const std::int64_t of_warp = kLanes * plan->vectors;
  if (rows.places == RowPlaces::kMixedRuns) {
    plan->lanes_per_row = LanesOfMixedRuns(ElementBytes(spec), vectors, plan->vectors);
    if (plan->lanes_per_row > 0) return;
  }
  if (vectors <= of_warp) {
    plan->lanes_per_row = 1;
    while (plan->lanes_per_row < std::min(vectors, kLanes)) plan->lanes_per_row *= 2;
  } else {
    plan->warps = static_cast<int>(std::min<std::int64_t>(CeilDiv(vectors, of_warp), kStageWarps));
  }
}

}  // namespace normd::norm::cuda
