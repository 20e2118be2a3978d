// Whether the server is ready: the one place that decides it for grpc.health.v1, GetServerInfo, the
// Open Inference Protocol over gRPC and HTTP, and the gauge normd_ready.

#ifndef NORMD_SERVER_RPC_READINESS_H_
#define NORMD_SERVER_RPC_READINESS_H_

#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/metrics/metrics.h"

namespace normd {

class HealthService;

// What a server without a loaded model says of itself.
enum class WithoutModels { kNotReady, kReady };

// Ready means that a client gets an answer: from Start to Stop, while a version of some model is
// loaded. The log tells when the last one goes and when the first one comes.
//
// Health names: "" and each service's name for the server; "<service>/<model>" for each model with
// a loaded version, unknown without one, so that names that come and go leave nothing behind. All
// of them are NOT_SERVING while the server is not ready. Thread-safe. Outlives the gRPC server
// between Attach and Detach.
class Readiness {
 public:
  // `metrics` outlives it.
  explicit Readiness(Metrics& metrics, WithoutModels without_models = WithoutModels::kNotReady)
      : metrics_(metrics), without_models_(without_models) {
    metrics_.SetReady(false);
  }

  // Whether a version of `name` is loaded.
  void SetModel(const std::string& name, bool loaded);
  void Start();
  // For good: neither Start nor SetModel makes anything serve again. `why` is what WhyNot says.
  void Stop(const char* why = "the server is stopping");
  bool ready() const;
  // Why the server is not ready or a new client finds no connection; empty when neither is so.
  std::string WhyNot() const;
  // Whether a new client finds a connection. Without room the metric says not ready, so that no
  // more clients are sent here; the health service, which is asked over a connection, speaks for
  // those who have one and goes on saying SERVING.
  void SetRoom(bool room);

  // Tells `health` the present state of `services` and each change. `health` lives until Detach.
  void Attach(HealthService* health, std::vector<std::string> services);
  void Detach();

 private:
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool runs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return started_ && !stopped_; }
  bool serving() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return runs() && (!models_.empty() || without_models_ == WithoutModels::kReady);
  }

  Metrics& metrics_;
  const WithoutModels without_models_;
  // Held while the health service is told, so that two changes arrive in order. That call only
  // queues messages to watchers; it never calls back.
  mutable Mutex mutex_;
  HealthService* health_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::string> services_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> models_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool room_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  const char* why_stopped_ ABSL_GUARDED_BY(mutex_) = "";
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_READINESS_H_
