// What a model's program computes, in float64: kernels/reference.h over tensors as lists.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_PROGRAM_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_PROGRAM_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "operations/geometry.h"
#include "operations/kernel_program.h"

namespace normd::client {

// The elements of every output, in the program's order: unrounded, and quantized ones not
// saturated. `inputs` are in the order of `geometry`, which Operation::Check made, and have the
// bytes that it says. InvalidArgument for a program or an index that the kernels refuse. Cost: one
// thread, about 10 ns an element; for a fused layer some nanoseconds for each of its
// multiplications.
absl::StatusOr<std::vector<std::vector<double>>> ComputeReference(
    const KernelProgram& program, const Geometry& geometry, absl::Span<const ConstBytes> inputs);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_PROGRAM_H_
