// How a request leaves and a response returns. The load run knows no protocol.

#ifndef NORMD_CLIENT_LOAD_SENDER_H_
#define NORMD_CLIENT_LOAD_SENDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "client/load/workload.h"

namespace normd::load {

// The server's stages, in the order of StageTimes in norm_service.proto.
inline constexpr std::size_t kServerStages = 6;
inline constexpr std::array<const char*, kServerStages> kServerStageNames = {
    "decode", "queue", "gather", "copy_in", "compute", "copy_out"};

enum class Verdict { kUnchecked, kRight, kWrong };

// One response, or its failure.
struct Outcome {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;            // The text of an error or a wrong response.
  bool cancelled = false;         // The client cancelled the call, on purpose.
  std::optional<TimePoint> sent;  // When it left, if the sender let it wait; else it left at once.
  TimePoint received{};
  // Set when the code is OK.
  std::optional<TimePoint> first_bytes;  // For a stream: when the first byte of its response came.
  std::int64_t output_bytes = 0;
  std::array<Duration, kServerStages> stages{};
  std::int64_t batch_requests = 0;
  Verdict verdict = Verdict::kUnchecked;
};

struct Outgoing {
  const Item* item = nullptr;  // Outlives the call.
  // Calls of one caller may share a connection; callers are spread over the connections.
  std::uint64_t caller = 0;
  bool verify = false;
  // If set, the client cancels the call this long after its send, unless it is answered by then.
  std::optional<Duration> cancel_after;
};

// Thread-safe.
class Sender {
 public:
  virtual ~Sender() = default;

  // Runs exactly once, on any thread, but never within Send; it may call Send.
  using Done = absl::AnyInvocable<void(const Outcome&) &&>;
  // Does not block.
  virtual void Send(const Outgoing& request, Done done) = 0;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_SENDER_H_
