// One operation in float64, as ReferenceModel computes it.

#ifndef NORMD_CLIENT_VERIFY_REFERENCE_OPERATION_H_
#define NORMD_CLIENT_VERIFY_REFERENCE_OPERATION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/tensor/tensor.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"

namespace normd::client {

// One output, unrounded. Its name is empty where the model has no other.
struct ReferenceOutput {
  TensorSpec spec;
  std::vector<double> elements;  // In the output's order; quantized ones neither rounded nor cut.
};

// An output's spec, and whether a response has it only for requests that name it.
struct ReferenceSpec {
  TensorSpec spec;
  bool on_request = false;
};

// A model's parameters, found by PyTorch's names whatever the config's file calls them.
class ReferenceParameters {
 public:
  // `tensors` as in the file.
  ReferenceParameters(const v1::ModelConfig& config, std::map<std::string, Tensor> tensors)
      : prefix_(config.parameter_prefix()),
        names_(config.parameter_names().begin(), config.parameter_names().end()),
        tensors_(std::move(tensors)) {}

  bool Has(const std::string& name) const { return tensors_.count(NameInFile(name)) != 0; }
  // Borrows. InvalidArgument when there is none, or it has not so many elements.
  absl::StatusOr<norm::ParamVector> Find(const std::string& name, std::int64_t elements) const;

 private:
  std::string NameInFile(const std::string& name) const;

  std::string prefix_;
  std::map<std::string, std::string> names_;
  std::map<std::string, Tensor> tensors_;
};

// Immutable once it has its parameters; then thread-safe. Lists of inputs have the order of
// input_names, and as many entries.
class ReferenceOperation {
 public:
  virtual ~ReferenceOperation() = default;

  virtual std::vector<std::string> input_names() const = 0;
  virtual bool needs_parameters() const = 0;
  // Called once, before Compute. Borrows from `parameters`.
  virtual absl::Status Take(const ReferenceParameters& parameters) = 0;

  // All outputs for inputs that fit; each has a name where there are several.
  virtual std::vector<ReferenceSpec> Outputs(absl::Span<const TensorSpec* const> inputs) const = 0;
  // Likewise. InvalidArgument for types or shapes that do not fit. Each input has the bytes of its
  // shape.
  virtual absl::StatusOr<std::vector<ReferenceOutput>> Compute(
      absl::Span<const NamedTensor* const> inputs) const = 0;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_REFERENCE_OPERATION_H_
