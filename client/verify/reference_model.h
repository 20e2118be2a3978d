// What a model of a repository ought to answer, in float64. The operations library reads the
// model's files, and kernels/reference.h computes them. tests/client/verify/golden_test.cc holds
// both against PyTorch, for every operation.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "client/tensor/tensor.h"
#include "normd/v1/model_config.pb.h"
#include "operations/geometry.h"
#include "operations/kernel_program.h"
#include "operations/operation.h"
#include "operations/parameter.h"

namespace normd::client {

// The elements of every output, in the program's order: unrounded, and quantized ones not
// saturated. `inputs` are in the order of `geometry`, which Operation::Check made, and have the
// bytes that it says. InvalidArgument for a program or an index that the kernels refuse. Cost: one
// thread, about 10 ns an element; for a fused layer some nanoseconds for each of its
// multiplications.
absl::StatusOr<std::vector<std::vector<double>>> ComputeReference(
    const KernelProgram& program, const Geometry& geometry, absl::Span<const ConstBytes> inputs);

// One output. The type in `spec` is the response's.
struct ReferenceOutput {
  TensorSpec spec;
  std::vector<double> elements;  // Unrounded; quantized ones are not saturated either.
};

// Immutable; thread-safe. Move-only.
class ReferenceModel {
 public:
  // Reads <repository>/<name>/config.textproto and, for a model with parameters,
  // <repository>/<name>/<version>/params.safetensors. NotFound names the path; InvalidArgument the
  // path, the field or the parameter.
  static absl::StatusOr<ReferenceModel> Load(const std::string& repository, const std::string& name,
                                             std::int64_t version);
  // From memory. `parameters` are named as in the file.
  static absl::StatusOr<ReferenceModel> Create(const v1::ModelConfig& config,
                                               std::vector<Parameter> parameters);

  // The outputs of a response to these inputs, in the model's order. Inputs are named as in a
  // request. `wanted` names the outputs; when it is empty, they are all but those on request, and a
  // single one has no name. InvalidArgument for a name that the model does not have, for types and
  // shapes that it does not take, and for bytes that do not fit a shape. Cost: as ComputeReference.
  absl::StatusOr<std::vector<ReferenceOutput>> Compute(
      absl::Span<const NamedTensor> inputs, absl::Span<const std::string> wanted = {}) const;
  // The names, types and shapes of the same outputs, for inputs like these.
  absl::StatusOr<std::vector<TensorSpec>> Outputs(absl::Span<const TensorSpec> inputs,
                                                  absl::Span<const std::string> wanted = {}) const;

 private:
  // What a request leads to.
  struct Plan {
    // The model's inputs, by their places in the request.
    absl::InlinedVector<std::size_t, kInlinedInputs> inputs;
    Geometry geometry;
    std::vector<std::size_t> outputs;  // Those that a response has, by their places in the model.
    std::vector<TensorSpec> specs;     // The same outputs' specs.
  };

  ReferenceModel() = default;
  absl::StatusOr<Plan> Check(absl::Span<const TensorSpec> inputs,
                             absl::Span<const std::string> wanted) const;
  // The places in the model of the outputs that a response has.
  absl::StatusOr<std::vector<std::size_t>> Select(absl::Span<const std::string> wanted) const;

  std::vector<Parameter> parameters_;  // Whose memory the program reads.
  std::unique_ptr<const Operation> operation_;
  std::shared_ptr<const KernelProgram> program_;  // shared: the type is only declared here.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_MODEL_H_
