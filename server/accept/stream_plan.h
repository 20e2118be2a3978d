// The size of a stream's window and of its pieces.

#ifndef NORMD_SERVER_ACCEPT_STREAM_PLAN_H_
#define NORMD_SERVER_ACCEPT_STREAM_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/accept/inputs.h"
#include "server/accept/piece_sequence.h"
#include "server/accept/stream_limits.h"
#include "server/model/model.h"

namespace normd {

struct StreamPlan {
  StreamLimits limits;  // Narrower than the server's if the output is larger than the inputs.
  PieceSequence pieces;
};

// InvalidArgument for rows that are too large for the server's window, with the window that they
// need.
absl::StatusOr<StreamPlan> PlanStream(const Model& model, const CheckedInputs& inputs,
                                      const StreamLimits& server);

// The bytes held for `input_bytes` of the inputs, including their part of the output. Requires
// input_bytes to be at most a window.
std::int64_t HeldBytes(const Geometry& geometry, std::int64_t input_bytes);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_STREAM_PLAN_H_
