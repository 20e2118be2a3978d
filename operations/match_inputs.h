// Which of a request's tensors is which input of the model.

#ifndef NORMD_OPERATIONS_MATCH_INPUTS_H_
#define NORMD_OPERATIONS_MATCH_INPUTS_H_

#include <cstddef>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "operations/operation.h"

namespace normd {

// Sets `places` to the place of each wanted input among a request's `count` tensors, which are
// called name(0), name(1), ... A single tensor without a name is the only input of a model that has
// one. InvalidArgument names a tensor that is unknown, missing or there twice.
absl::Status MatchInputs(absl::Span<const TensorSignature> wanted, std::size_t count,
                         absl::FunctionRef<absl::string_view(std::size_t)> name,
                         absl::InlinedVector<std::size_t, kInlinedInputs>& places);

// "x" and "residual": the tensors' names, as errors list them.
std::string QuotedNames(absl::Span<const TensorSignature> tensors);

}  // namespace normd

#endif  // NORMD_OPERATIONS_MATCH_INPUTS_H_
