// A request's tensors as its model takes them.

#ifndef NORMD_SERVER_RPC_INPUTS_H_
#define NORMD_SERVER_RPC_INPUTS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "kernels/linear_norm.h"
#include "kernels/norm.h"
#include "server/model/model.h"
#include "wire/tensor_message.h"

namespace normd {

struct CheckedInputs {
  norm::DType dtype = norm::DType::kFloat32;  // Of every input and of the output.
  Shape output_shape;
  Geometry geometry;
  // For each of the model's input_names, its place among the request's tensors, and its type.
  std::array<std::size_t, kMaxInputs> places{};
  absl::InlinedVector<TensorType, kMaxInputs> types;
};

// Matches the tensors to the model's inputs by name, and checks their types and shapes. A single
// tensor without a name is the only input of a model that has one. InvalidArgument names the field,
// what came and what was wanted.
absl::StatusOr<CheckedInputs> CheckInputTypes(const Model& model,
                                              absl::Span<const ReceivedTensor> tensors);

// The same, and checks the bytes of each against its shape. InvalidArgument also when the inputs
// together, or the output, have more than `max_bytes`.
absl::StatusOr<CheckedInputs> CheckInputs(const Model& model,
                                          absl::Span<const ReceivedTensor> tensors,
                                          std::int64_t max_bytes);

// What the request asks for, or else the model's own. InvalidArgument: "precision: ...", for an
// unknown value and for a model without a matrix product.
absl::StatusOr<norm::Precision> CheckPrecision(const Model& model, v1::Precision asked);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INPUTS_H_
