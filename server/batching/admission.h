// The server's budgets: how many requests, and how many of their bytes, may be inside at once.

#ifndef NORMD_SERVER_BATCHING_ADMISSION_H_
#define NORMD_SERVER_BATCHING_ADMISSION_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/metrics/metrics.h"

namespace normd {

// What a request cannot do without.
enum class Needs { kLane, kNothing };

struct AdmissionLimits {
  std::int64_t max_inflight_bytes = std::int64_t{1} << 30;  // Inputs plus outputs.
  std::int64_t max_inflight_requests = 16384;
};

// Thread-safe and lock-free. Every front end passes every request through the one instance.
class Admission {
 public:
  // A request's share; returns it on destruction. Move-only. The Admission outlives it.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

   private:
    friend class Admission;
    Lease(Admission* owner, std::int64_t bytes) : owner_(owner), bytes_(bytes) {}
    Admission* owner_ = nullptr;
    std::int64_t bytes_ = 0;
  };

  Admission(AdmissionLimits limits, Metrics& metrics);

  // ResourceExhausted, naming the budget, what was asked for and what is free, when it does not
  // fit; Unavailable after Close, or when it needs a lane while not ready. Counts the refusal with
  // `model`. A request larger than the whole budget is InvalidArgument: no retry will help.
  absl::StatusOr<Lease> Admit(std::int64_t bytes, ModelMetrics& model, Needs needs = Needs::kLane);

  // Refuses everything from now on.
  void Close() { closed_.store(true, std::memory_order_relaxed); }
  // Not ready: no lane is left that works.
  void SetReady(bool ready) { ready_.store(ready, std::memory_order_relaxed); }
  bool ready() const { return ready_.load(std::memory_order_relaxed); }

  std::int64_t inflight_requests() const { return requests_.load(std::memory_order_acquire); }
  std::int64_t inflight_bytes() const { return bytes_.load(std::memory_order_acquire); }

 private:
  void Return(std::int64_t bytes);

  const AdmissionLimits limits_;
  Metrics& metrics_;
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<std::int64_t> requests_{0};
  // Relaxed: a request that races with the change is served or refused, and both are right.
  std::atomic<bool> closed_{false};
  std::atomic<bool> ready_{true};
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_ADMISSION_H_
