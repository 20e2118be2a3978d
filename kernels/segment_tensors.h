// The tensors of a segment, for callers that hold tensors in lists.

#ifndef NORMD_KERNELS_SEGMENT_TENSORS_H_
#define NORMD_KERNELS_SEGMENT_TENSORS_H_

#include <cstdint>
#include <vector>

#include "kernels/norm.h"

namespace normd::norm {

// The fields of Segment that are inputs.
enum class SegmentInput : std::uint8_t {
  kX,
  kResidual,
  kOther,
  kGate,
  kScale,
  kShift,
  kStyleIndex,
  kStyleWeights,
  kStyleTensor,
};

enum class SegmentOutput : std::uint8_t { kY, kResidualOut, kScale, kMean, kRstd };

// The inputs that a spec takes and the outputs that it can give, in the order of the enumerators.
std::vector<SegmentInput> InputsOf(const NormSpec& spec);
std::vector<SegmentOutput> OutputsOf(const NormSpec& spec);

// Whether the tensor has x's shape.
constexpr bool IsLikeX(SegmentInput input) {
  return input == SegmentInput::kX || input == SegmentInput::kResidual ||
         input == SegmentInput::kOther;
}

// Whether a segment may leave the output out: its field is then null.
constexpr bool IsOptional(SegmentOutput output) {
  return output == SegmentOutput::kMean || output == SegmentOutput::kRstd;
}

// The element types; spec.dtype is the segment's.
DType TypeOf(const NormSpec& spec, SegmentInput input);
DType TypeOf(const NormSpec& spec, SegmentOutput output);

// Sets the field. `bytes` is the tensor's size for all samples of the segment; it tells the size of
// a style tensor. The segment's samples are already set, and `spec` has its type.
void SetInput(const NormSpec& spec, SegmentInput input, const void* data, std::int64_t bytes,
              Segment& segment);
void SetOutput(SegmentOutput output, void* data, Segment& segment);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_SEGMENT_TENSORS_H_
