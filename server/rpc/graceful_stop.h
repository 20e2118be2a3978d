// The ordered end of the server.

#ifndef NORMD_SERVER_RPC_GRACEFUL_STOP_H_
#define NORMD_SERVER_RPC_GRACEFUL_STOP_H_

#include <chrono>
#include <functional>

#include "base/clock.h"
#include "base/mutex.h"
#include "server/accept/active_calls.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/rpc/readiness.h"

namespace normd {

class Server;

struct GracefulStopOptions {
  // The time to keep serving after health has said NOT_SERVING, so that load balancers notice it.
  Duration lame_duck{0};
  // The time for accepted calls to finish after that. The server does not wait once all have.
  Duration drain_timeout = std::chrono::seconds(30);
  // The time for which an accepted stream, or a body over HTTP, may then wait for its client to
  // send.
  Duration stream_quiet = std::chrono::seconds(2);
};

// On the first Signal:
//   1. health says NOT_SERVING, and the server keeps serving for `lame_duck`;
//   2. new calls are refused with UNAVAILABLE, and all accepted ones finish, including streams and
//      inference whose body still comes over HTTP, unless they send nothing for `stream_quiet`.
//      Those get UNAVAILABLE, and at once a stream without a header and any other half-sent call;
//   3. the connections are closed, and then the gRPC server shuts down.
// A second Signal, or `drain_timeout`, ends it early: waiting requests and every stream are
// answered with UNAVAILABLE, and work in a lane at that moment is abandoned.
class GracefulStop {
 public:
  enum class Outcome {
    kClean,    // Every accepted call was answered with its result, and the server has shut down.
    kAborted,  // Calls may still be in a lane: the caller ends the process without waiting.
  };

  // All of them outlive it.
  struct Parts {
    Readiness& readiness;
    Admission& admission;
    BatchQueue& queue;
    ActiveCalls& active;
    Server& server;
    // For a front end with a port of its own: called when new calls are refused, and at the end.
    std::function<void()> on_drain = [] {};
    std::function<void(Duration grace)> on_close = [](Duration) {};
  };

  GracefulStop(GracefulStopOptions options, Parts parts) : options_(options), parts_(parts) {}

  // Thread-safe; not for signal handlers.
  void Signal();
  // Waits for the first Signal, then stops the server. Called once.
  Outcome Run();

 private:
  bool WaitForSignals(int wanted, TimePoint until);
  bool Drain();
  int signals() const;

  const GracefulStopOptions options_;
  const Parts parts_;
  mutable Mutex mutex_;
  CondVar changed_;
  int signals_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Called when the last lane has failed: health says NOT_SERVING for good, new requests are refused,
// and waiting ones are answered, all with UNAVAILABLE. Thread-safe; does not block.
void RetireService(Readiness& readiness, Admission& admission, BatchQueue& queue);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_GRACEFUL_STOP_H_
