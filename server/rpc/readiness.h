// What the server says of itself: grpc.health.v1 and the gauge normd_ready.

#ifndef NORMD_SERVER_RPC_READINESS_H_
#define NORMD_SERVER_RPC_READINESS_H_

#include <set>
#include <string>

#include "base/mutex.h"
#include "server/metrics/metrics.h"

namespace normd {

class HealthService;

// Health names: "" and "normd.v1.NormService" for the server, which serves whichever models are
// loaded, and be it none; "normd.v1.NormService/<model>" for each model with a loaded version,
// unknown without one, so that names that come and go leave nothing behind. All of them are
// NOT_SERVING before Start and after Stop. Thread-safe. Outlives the gRPC server between Attach and
// Detach.
class Readiness {
 public:
  // `metrics` outlives it.
  explicit Readiness(Metrics& metrics) : metrics_(metrics) { metrics_.SetReady(false); }

  // Whether a version of `name` is loaded.
  void SetModel(const std::string& name, bool loaded);
  void Start();
  // For good: neither Start nor SetModel makes anything serve again.
  void Stop();
  bool ready() const;
  // Whether a new client finds a connection. Without room the metric says not ready, so that no
  // more clients are sent here; the health service, which is asked over a connection, speaks for
  // those who have one and goes on saying SERVING.
  void SetRoom(bool room);

  // Tells `health` the present state and each change. `health` lives until Detach.
  void Attach(HealthService* health);
  void Detach();

 private:
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Metrics& metrics_;
  // Held while the health service is told, so that two changes arrive in order. That call only
  // queues messages to watchers; it never calls back.
  mutable Mutex mutex_;
  HealthService* health_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::set<std::string> models_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool room_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_READINESS_H_
