#include "kernels/segment_tensors.h"

namespace normd::norm {

std::vector<SegmentInput> InputsOf(const NormSpec& spec) {
  std::vector<SegmentInput> inputs = {SegmentInput::kX};
  if (spec.residual) inputs.push_back(SegmentInput::kResidual);
  if (spec.takes_other()) inputs.push_back(SegmentInput::kOther);
  if (spec.gate) inputs.push_back(SegmentInput::kGate);
  if (spec.scale) inputs.push_back(SegmentInput::kScale);
  if (spec.shift) inputs.push_back(SegmentInput::kShift);
  if (spec.style == Style::kIndex) inputs.push_back(SegmentInput::kStyleIndex);
  if (spec.style == Style::kMix) inputs.push_back(SegmentInput::kStyleWeights);
  if (spec.style == Style::kTensor) inputs.push_back(SegmentInput::kStyleTensor);
  return inputs;
}

std::vector<SegmentOutput> OutputsOf(const NormSpec& spec) {
  std::vector<SegmentOutput> outputs = {SegmentOutput::kY};
  if (spec.residual_out) outputs.push_back(SegmentOutput::kResidualOut);
  if (spec.quantization_scale != QuantizationScale::kStatic) {
    outputs.push_back(SegmentOutput::kScale);
  }
  if (spec.statistics == Statistics::kMeanVariance) outputs.push_back(SegmentOutput::kMean);
  if (spec.statistics != Statistics::kGiven) outputs.push_back(SegmentOutput::kRstd);
  return outputs;
}

DType TypeOf(const NormSpec& spec, SegmentInput input) {
  return input == SegmentInput::kStyleIndex ? DType::kInt64 : spec.dtype;
}

DType TypeOf(const NormSpec& spec, SegmentOutput output) {
  switch (output) {
    case SegmentOutput::kY:
      if (spec.quantization == Quantization::kNone) return spec.dtype;
      return spec.quantization == Quantization::kInt8 ? DType::kInt8 : DType::kFloat8E4M3;
    case SegmentOutput::kResidualOut: return spec.dtype;
    case SegmentOutput::kScale: return DType::kFloat32;
    case SegmentOutput::kMean:
    case SegmentOutput::kRstd: break;
  }
  return spec.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

void SetInput(const NormSpec& spec, SegmentInput input, const void* data, std::int64_t bytes,
              Segment& segment) {
  switch (input) {
    case SegmentInput::kX: segment.x = data; return;
    case SegmentInput::kResidual: segment.residual = data; return;
    case SegmentInput::kOther: segment.other = data; return;
    case SegmentInput::kGate: segment.gate = data; return;
    case SegmentInput::kScale: segment.scale = data; return;
    case SegmentInput::kShift: segment.shift = data; return;
    case SegmentInput::kStyleIndex:
      segment.style_index = static_cast<const std::int64_t*>(data);
      return;
    case SegmentInput::kStyleWeights: segment.style_weights = data; return;
    case SegmentInput::kStyleTensor: {
      segment.style_tensor = data;
      if (segment.samples == 0) return;
      const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
      segment.style_spatial = bytes / element / (segment.samples * spec.channels);
      return;
    }
  }
}

void SetOutput(SegmentOutput output, void* data, Segment& segment) {
  switch (output) {
    case SegmentOutput::kY: segment.y = data; return;
    case SegmentOutput::kResidualOut: segment.residual_out = data; return;
    case SegmentOutput::kScale: segment.scale_out = static_cast<float*>(data); return;
    case SegmentOutput::kMean: segment.mean_out = data; return;
    case SegmentOutput::kRstd: segment.rstd_out = data; return;
  }
}

}  // namespace normd::norm
