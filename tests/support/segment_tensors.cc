#include "tests/support/segment_tensors.h"

#include <algorithm>
#include <cstdint>

#include "kernels/sample_range.h"

namespace normd::norm::testing {

std::vector<SegmentTensor> TensorsOf(const NormSpec& spec, Segment* segment) {
  const auto input = [](auto** address) {
    return const_cast<void**>(reinterpret_cast<const void* const*>(address));
  };
  const std::size_t element = SizeOf(spec.dtype);
  const std::size_t accumulator = spec.dtype == DType::kFloat64 ? 8 : 4;
  const auto samples = static_cast<std::size_t>(segment->samples);
  const auto channels = samples * static_cast<std::size_t>(spec.channels);
  const auto elements = channels * static_cast<std::size_t>(segment->spatial);
  const bool quantized = spec.quantization != Quantization::kNone;
  const auto rows = samples * static_cast<std::size_t>(RowsOfSample(spec, segment->spatial));
  const std::int64_t length = RowLength(spec, segment->spatial);
  const auto scales =
      spec.quantization_scale == QuantizationScale::kBlock
          ? static_cast<std::size_t>((length + kQuantizationBlock - 1) / kQuantizationBlock)
          : 1;
  const auto styles = samples * static_cast<std::size_t>(spec.styles);
  const auto style_elements = channels * static_cast<std::size_t>(segment->style_spatial);
  const SampleGaps gaps = GapsOf(spec, *segment);
  const auto with_gaps = [&](std::int64_t gap) {
    return elements + (samples - 1) * static_cast<std::size_t>(gap);
  };
  return {{input(&segment->x), with_gaps(gaps.x) * element},
          {&segment->y, with_gaps(gaps.y) * (quantized ? 1 : element), true},
          {input(&segment->residual), elements * element},
          {&segment->residual_out, elements * element, true},
          {input(&segment->other), elements * element},
          {input(&segment->gate), channels * element},
          {input(&segment->scale), channels * element},
          {input(&segment->shift), channels * element},
          {input(&segment->style_index), samples * sizeof(std::int64_t)},
          {input(&segment->style_weights), styles * element},
          {input(&segment->style_tensor), style_elements * element},
          {&segment->mean_out, rows * accumulator, true},
          {&segment->rstd_out, rows * accumulator, true},
          {input(&segment->scale_out), rows * scales * sizeof(float), true}};
}

std::vector<ParamTensor> TensorsOf(const NormSpec& spec, NormParams* params) {
  const auto channels = static_cast<std::size_t>(spec.channels);
  const std::size_t affine =
      channels * static_cast<std::size_t>(std::max<std::int64_t>(spec.styles, 1));
  const auto tensor = [](ParamVector* vector, std::size_t count) {
    return ParamTensor{vector, count * SizeOf(vector->dtype)};
  };
  return {tensor(&params->gamma, affine), tensor(&params->beta, affine),
          tensor(&params->mean, channels), tensor(&params->variance, channels),
          tensor(&params->input_bias, channels)};
}

}  // namespace normd::norm::testing
