// Matches a request's tensors to the inputs and outputs of its model.

#ifndef NORMD_SERVER_ACCEPT_INPUTS_H_
#define NORMD_SERVER_ACCEPT_INPUTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "kernels/types.h"
#include "server/accept/description.h"
#include "server/model/model.h"

namespace normd {

struct CheckedInputs {
  norm::DType dtype = norm::DType::kFloat32;  // The first input's.
  Geometry geometry;
  // For each of the model's inputs, its place among the request's tensors, and its type.
  absl::InlinedVector<std::size_t, kInlinedInputs> places;
  absl::InlinedVector<TensorType, kInlinedInputs> types;
  absl::InlinedVector<TensorType, kInlinedOutputs> outputs;  // In the model's order.

  // "64 for shape [2, 8] of float32": the bytes of all inputs.
  std::string WantedData() const;
};

// Matches the tensors to the model's inputs by name, checks their types and shapes, and replaces
// `checked`. A single tensor without a name is the only input of a model that has one.
// InvalidArgument names the field, what came and what was wanted.
absl::Status CheckInputs(const Model& model, absl::Span<const InputDescription> tensors,
                         CheckedInputs& checked);

// The bytes of a request's tensors outside device memory.
struct HostBytes {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};
// InvalidArgument when the inputs together, or the outputs, have more than `max_bytes`.
absl::Status CheckSize(const HostBytes& bytes, std::int64_t max_bytes);

// Checks each input's bytes, also in regions, against its shape, and the values of indexes outside
// regions. InvalidArgument also when the inputs together, or the outputs, have more than
// `max_bytes`.
absl::Status CheckData(const Model& model, absl::Span<const InputDescription> tensors,
                       const CheckedInputs& inputs, std::int64_t max_bytes);

// The outputs that a request wants, in the model's order.
struct PlacedOutputs {
  // As Request::outputs: empty, or one for each.
  absl::InlinedVector<OutputMemory, kInlinedOutputs> memory;
  bool by_name = false;  // The request wants the outputs that it names.
  // The outputs in the response: empty for all, or one for each.
  absl::InlinedVector<bool, kInlinedOutputs> named;
  // For each output that the request names, its place among the model's.
  absl::InlinedVector<std::size_t, kInlinedOutputs> places;

  bool Has(std::size_t k) const { return named.empty() || named[k]; }
};

// InvalidArgument unless each element of an input, int64 in `views` of any split, is one of its
// values. `first` is the place of the views' first element in the tensor.
absl::Status CheckIndexes(const TensorSignature& input, absl::Span<const ConstBytes> views,
                          std::int64_t first);

// Matches the outputs that a request names to the model's, and adds the named ones on request to
// the geometry. InvalidArgument names the field for an unknown output, one that is named twice, and
// memory that has not its size or is not aligned to its elements.
absl::StatusOr<PlacedOutputs> PlaceOutputs(const Model& model, const RequestDescription& request,
                                           CheckedInputs& inputs);

// InvalidArgument when an input already has data, or a tensor lies in a region.
absl::Status CheckNoData(const RequestDescription& request);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_INPUTS_H_
