// How a segment is computed whose spec needs more than the specialised kernels have, and how its
// rows are cut if the kernels of this folder compute it: a pure function of the spec, the spatial
// size and the present parameters.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_PLAN_H_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_PLAN_H_

#include <cstdint>

#include "kernels/cuda/strategy.h"
#include "kernels/norm.h"

namespace normd::norm::cuda {

// The kernels that compute a segment.
enum class Lowering : std::uint8_t {
  // The specialised kernels, unchanged.
  kPlain = 0,
  // The same, with each position as a sample.
  kPositions = 1,
  // A kernel that computes a factor and an offset for each sample and channel, then the specialised
  // kernels with these as gamma and beta: all samples' channels then count as one sample's.
  kSampleAffine = 2,
  // The kernels of rows in a block, with each sample's scale and shift in place of gamma and beta
  // or, for a `weight_offset`, with gamma and beta as those of every sample.
  kModulated = 3,
  // The kernels of this folder.
  kStages = 4,
};

// The parameters that a segment has.
struct PresentParams {
  bool affine = false;           // Gamma or beta.
  bool rows_type_gamma = false;  // Gamma is present, and gamma and beta have the rows' type.
  bool input_bias = false;
  int channel_bytes = 0;  // Bytes of gamma and beta per channel.

  static PresentParams Of(const NormParams& params, DType dtype) {
    const auto bytes_of = [](const ParamVector& param) {
      return param.data == nullptr ? 0 : static_cast<int>(SizeOf(param.dtype));
    };
    const bool other_beta = params.beta.data != nullptr && params.beta.dtype != dtype;
    return {params.gamma.data != nullptr || params.beta.data != nullptr,
            params.gamma.data != nullptr && params.gamma.dtype == dtype && !other_beta,
            params.input_bias.data != nullptr, bytes_of(params.gamma) + bytes_of(params.beta)};
  }
};

Lowering LowerSegment(const NormSpec& spec, std::int64_t spatial, const PresentParams& params);

// The spec and the counts that the specialised kernels get for a segment with kPlain, kPositions or
// kSampleAffine; with kModulated and kStages they are the segment's own.
struct LoweredRows {
  NormSpec spec;
  std::int64_t samples;
  std::int64_t spatial;
};
LoweredRows LowerRows(const NormSpec& spec, Lowering lowering, std::int64_t samples,
                      std::int64_t spatial);

// The layout of a segment's rows in memory, for the kernels of this folder. Given statistics have
// no rows: any elements can then form one.
struct StageRows {
  RowPlaces places = RowPlaces::kTogether;
  std::int64_t elements = 0;     // Per row.
  std::int64_t groups = 1;       // Rows of a sample, or of one of its positions.
  std::int64_t positions = 1;    // Rows per group of a sample.
  std::int64_t channel_run = 1;  // Consecutive elements that have the same channel.

  std::int64_t rows_of_sample() const { return groups * positions; }
};
StageRows RowsOfStages(const NormSpec& spec, std::int64_t spatial);

// 16-byte vectors of a row that one lane holds at once: few beside a second tensor or an input
// bias, of quantized and of short rows, many elsewhere, which spreads a row's cost over more
// elements.
inline constexpr int kFewVectors = 4;
inline constexpr int kManyVectors = 8;
// The most warps that share a row.
inline constexpr int kStageWarps = 32;

// Warps in each block of a row that is cut into slices of up to 32 KiB; longer slices have twice as
// many.
inline constexpr int kSliceWarps = 8;

// Whether quantized rows are multiplied with gamma before they are normalized, so that the largest
// product gives the largest result. Requires rows of a block, and neither beta nor input bias.
bool ScalesFirst(const NormSpec& spec);

// Whether sliced_rows.cu has the stages and types of a spec.
bool SlicesRows(const NormSpec& spec);

// Fills in a plan of Strategy::kStages. Rows over 64 KiB have several blocks, or none if
// sliced_rows.cu cannot compute them, for example without clusters.
void PlanStages(const NormSpec& spec, std::int64_t spatial, const PresentParams& params,
                const DeviceLimits& limits, Plan* plan);
// The same without any parameters.
inline void PlanStages(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits,
                       Plan* plan) {
  PlanStages(spec, spatial, PresentParams(), limits, plan);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_PLAN_H_
