// The pieces of a stream: their size and order, and the size of its window.

#ifndef NORMD_SERVER_ACCEPT_STREAM_PLAN_H_
#define NORMD_SERVER_ACCEPT_STREAM_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "operations/geometry.h"
#include "server/accept/inputs.h"
#include "server/accept/stream_limits.h"
#include "server/model/model.h"

namespace normd {

// The pieces of a request's tensors, in order: together they have every row once. They depend on
// the tensors and the target alone, never on how the bytes arrive. A value type.
class PieceSequence {
 public:
  // `tensors` comes from Model::Check, `cut` is the model's rule; target_bytes > 0.
  PieceSequence(const CutRule& cut, const Geometry& tensors, std::int64_t target_bytes);

  // The bytes of the inputs' smallest unit, which is never cut: a row, or a sample if rows are
  // interleaved or a sample is smaller than the target. A piece has at most the target's bytes, or
  // one unit.
  std::int64_t unit_bytes() const { return unit_.InputBytes(); }

  bool done() const { return next_unit_ == units_; }
  // Requires !done().
  Geometry Next();

 private:
  Geometry unit_;
  std::int64_t units_ = 0;
  std::int64_t sample_units_ = 1;  // Units of a sample; more than 1 when they are rows.
  std::int64_t unit_channels_ = 0;
  std::int64_t piece_units_ = 0;
  std::int64_t next_unit_ = 0;
};

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
