#include "kernels/sample_range.h"

#include <type_traits>

namespace normd::norm {

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
  const SampleGaps gaps = GapsOf(spec, segment);
  const std::int64_t rows = RowsOfSample(spec, segment.spatial);
  std::int64_t scales = rows;
  if (spec.quantization_scale == QuantizationScale::kBlock) {
    scales *= (RowLength(spec, segment.spatial) + kQuantizationBlock - 1) / kQuantizationBlock;
  }
  Segment part = segment;
  part.samples = count;
  move(part.x, (sample + gaps.x) * element);
  move(part.y, (sample + gaps.y) * (spec.quantization == Quantization::kNone ? element : 1));
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

}  // namespace normd::norm
