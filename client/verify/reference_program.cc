#include "client/verify/reference_program.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "kernels/reference.h"
#include "kernels/segment_tensors.h"

namespace normd::client {
namespace {

using Elements = std::vector<std::vector<double>>;

absl::Status FromKernels(const norm::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

std::vector<double> Sums(const norm::NormSpec& spec, const norm::NormParams& params,
                         const norm::Segment& segment, std::size_t count) {
  std::vector<double> sums(count);
  for (std::size_t i = 0; i < count; ++i) {
    sums[i] = norm::NormalizedElement(spec, params, segment, static_cast<std::int64_t>(i));
  }
  return sums;
}

absl::StatusOr<Elements> Compute(const NormProgram& program, const Geometry& geometry,
                                 absl::Span<const ConstBytes> inputs) {
  const norm::NormSpec& spec = program.Spec(geometry.inputs.front().dtype);
  norm::Segment segment;
  segment.samples = geometry.samples;
  segment.spatial = geometry.spatial;
  segment.spatial_runs = geometry.spatial_runs;
  const std::vector<norm::SegmentInput> fields = norm::InputsOf(spec);
  for (std::size_t i = 0; segment.samples > 0 && i < fields.size(); ++i) {
    norm::SetInput(spec, fields[i], inputs[i].data(), static_cast<std::int64_t>(inputs[i].size()),
                   segment);
  }
  const auto count = static_cast<std::size_t>(segment.samples * spec.channels * segment.spatial);
  const auto rows = static_cast<std::size_t>(geometry.rows);
  std::vector<double> y(count);
  std::vector<double> mean(rows);
  std::vector<double> rstd(rows);
  const norm::Status status = norm::NormalizeReference(
      spec, program.params, segment, norm::ReferenceOutputs{y.data(), mean.data(), rstd.data()});
  if (!status.ok()) return FromKernels(status);
  std::vector<double> scales;
  if (spec.quantization_scale != norm::QuantizationScale::kStatic) {
    scales = norm::ReferenceScales(spec, segment, y.data());
    norm::DivideByScales(spec, segment, scales, y.data());
  } else if (spec.quantization != norm::Quantization::kNone) {
    for (double& element : y) element /= spec.output_scale;
  }
  Elements elements;
  for (const norm::SegmentOutput output : norm::OutputsOf(spec)) {
    switch (output) {
      case norm::SegmentOutput::kY: elements.push_back(std::move(y)); break;
      case norm::SegmentOutput::kResidualOut:
        elements.push_back(Sums(spec, program.params, segment, count));
        break;
      case norm::SegmentOutput::kScale: elements.push_back(std::move(scales)); break;
      case norm::SegmentOutput::kMean: elements.push_back(std::move(mean)); break;
      case norm::SegmentOutput::kRstd: elements.push_back(std::move(rstd)); break;
    }
  }
  return elements;
}

absl::StatusOr<Elements> Compute(const LinearNormProgram& program, const Geometry& geometry,
                                 absl::Span<const ConstBytes> inputs) {
  norm::LinearNormSpec spec = program.spec;
  spec.dtype = geometry.inputs.front().dtype;
  norm::LinearNormSegment segment;
  segment.x = inputs.front().data();
  segment.y = inputs.size() > 1 ? inputs[1].data() : nullptr;
  segment.samples = geometry.samples;
  std::vector<double> out(static_cast<std::size_t>(geometry.samples * spec.out_features));
  const norm::Status status = norm::LinearNormReference(spec, program.params, segment, out.data());
  if (!status.ok()) return FromKernels(status);
  return Elements{std::move(out)};
}

}  // namespace

absl::StatusOr<std::vector<std::vector<double>>> ComputeReference(
    const KernelProgram& program, const Geometry& geometry, absl::Span<const ConstBytes> inputs) {
  return std::visit([&](const auto& one) { return Compute(one, geometry, inputs); }, program);
}

}  // namespace normd::client
