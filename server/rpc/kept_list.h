// A long list, serialized once for all callers who may get the same one.

#ifndef NORMD_SERVER_RPC_KEPT_LIST_H_
#define NORMD_SERVER_RPC_KEPT_LIST_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/control_messages.h"

namespace normd {

// Used by one thread, that of CallEnvironment::lists.
template <typename Message>
class KeptList {
 public:
  // Sets `bytes` to a list made from `state`, if there is one, or else to one begun after
  // `arrival`. Calls `fill` if none is kept.
  absl::Status Get(std::optional<std::uint64_t> state, TimePoint arrival, const Clock& clock,
                   absl::FunctionRef<void(Message&)> fill, grpc::ByteBuffer& bytes) {
    if ((!state.has_value() || state != state_) && arrival >= begun_) {
      const TimePoint now = clock.Now();
      Message message;
      fill(message);
      grpc::ByteBuffer fresh;
      if (absl::Status status = Serialize(message, fresh); !status.ok()) return status;
      bytes_ = fresh;
      state_ = state;
      begun_ = now;
    }
    bytes = bytes_;  // Shares the memory.
    return absl::OkStatus();
  }

 private:
  grpc::ByteBuffer bytes_;
  std::optional<std::uint64_t> state_;
  TimePoint begun_ = TimePoint::min();
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_KEPT_LIST_H_
