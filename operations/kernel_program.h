// A model's computation for the backends: one of the kernels' contracts, with its spec and
// parameters.

#ifndef NORMD_OPERATIONS_KERNEL_PROGRAM_H_
#define NORMD_OPERATIONS_KERNEL_PROGRAM_H_

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <variant>

#include "kernels/linear_norm.h"
#include "kernels/norm.h"

namespace normd {

// The contract of kernels/norm.h. kernels/segment_tensors.h gives its inputs and outputs for the
// specs, which differ only in type and eps.
struct NormProgram {
  // One for each type, in the order of its values from 1.
  std::array<norm::NormSpec, 4> specs;
  norm::NormParams params;  // Host memory, alive as long as the model.
  // The memory of those params that the operation made. shared: by copies of the program.
  std::shared_ptr<const std::byte[]> made_params;

  const norm::NormSpec& Spec(norm::DType dtype) const {
    return specs[static_cast<std::size_t>(dtype) - 1];
  }
};

// The contract of kernels/linear_norm.h: x, y where the epilogue needs it, and one output.
struct LinearNormProgram {
  norm::LinearNormSpec spec;      // Its dtype is ignored; a request may ask for another precision.
  norm::LinearNormParams params;  // Host memory, alive as long as the model.
};

// A backend has an implementation of each alternative; see server/exec. A struct, so that headers
// can declare it without the kernels' contracts.
struct KernelProgram : std::variant<NormProgram, LinearNormProgram> {
  using variant::variant;
};

// The input that an output may replace exactly: a norm's x for y and its residual for residual_out,
// a fused layer's y for its output. Both are indexes into the model's lists.
std::optional<std::size_t> OverwritableInput(const KernelProgram& program, std::size_t output);

}  // namespace normd

#endif  // NORMD_OPERATIONS_KERNEL_PROGRAM_H_
