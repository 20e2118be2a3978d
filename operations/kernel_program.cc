#include "operations/kernel_program.h"

#include <algorithm>
#include <vector>

#include "kernels/segment_tensors.h"

namespace normd {
namespace {

std::optional<std::size_t> OverwritableInput(const NormProgram& program, std::size_t output) {
  const norm::NormSpec& spec = program.Spec(norm::DType::kFloat32);
  const std::vector<norm::SegmentOutput> outputs = norm::OutputsOf(spec);
  if (output >= outputs.size()) return std::nullopt;
  const bool is_y = outputs[output] == norm::SegmentOutput::kY;
  if (is_y ? spec.quantization != norm::Quantization::kNone
           : outputs[output] != norm::SegmentOutput::kResidualOut) {
    return std::nullopt;
  }
  const norm::SegmentInput place = is_y ? norm::SegmentInput::kX : norm::SegmentInput::kResidual;
  const std::vector<norm::SegmentInput> inputs = norm::InputsOf(spec);
  const auto found = std::find(inputs.begin(), inputs.end(), place);
  if (found == inputs.end()) return std::nullopt;
  return static_cast<std::size_t>(found - inputs.begin());
}

// y, where there is one, comes after x.
std::optional<std::size_t> OverwritableInput(const LinearNormProgram& program, std::size_t output) {
  if (output != 0 || !program.spec.epilogue.needs_y()) return std::nullopt;
  return 1;
}

}  // namespace

std::optional<std::size_t> OverwritableInput(const KernelProgram& program, std::size_t output) {
  return std::visit([output](const auto& one) { return OverwritableInput(one, output); }, program);
}

}  // namespace normd
