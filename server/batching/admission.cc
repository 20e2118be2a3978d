#include "server/batching/admission.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// Adds `amount` unless the sum would exceed `limit`, so that nobody ever sees a sum above it.
// Returns what was free at a refusal, or -1 on success. Relaxed: the counters guard no memory; a
// modification order that everybody agrees on is enough.
std::int64_t TryAdd(std::atomic<std::int64_t>& sum, std::int64_t amount, std::int64_t limit) {
  std::int64_t current = sum.load(std::memory_order_relaxed);
  do {
    if (amount > limit - current) return limit - current;
  } while (!sum.compare_exchange_weak(current, current + amount, std::memory_order_relaxed));
  return -1;
}

}  // namespace

Admission::Lease::Lease(Lease&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Admission::Lease& Admission::Lease::operator=(Lease&& other) noexcept {
  Lease taken(std::move(other));
  std::swap(owner_, taken.owner_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

Admission::Lease::~Lease() {
  if (owner_ != nullptr) owner_->Return(bytes_);
}

Admission::Admission(AdmissionLimits limits, Metrics& metrics)
    : limits_(limits), metrics_(metrics) {}

absl::StatusOr<Admission::Lease> Admission::Admit(std::int64_t bytes, ModelMetrics& model,
                                                  Needs needs) {
  assert(bytes >= 0);
  if (bytes > limits_.max_inflight_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("request: needs ", bytes,
                                                   " bytes, wanted at most the server's budget of ",
                                                   limits_.max_inflight_bytes));
  }
  if (closed_.load(std::memory_order_relaxed)) {
    model.RecordRejection(Rejection::kDraining);
    return absl::UnavailableError("the server is shutting down");
  }
  if (needs == Needs::kLane && !ready()) {
    model.RecordRejection(Rejection::kNotReady);
    return absl::UnavailableError("the server has no working lane");
  }
  if (TryAdd(requests_, 1, limits_.max_inflight_requests) >= 0) {
    model.RecordRejection(Rejection::kInflightRequests);
    return absl::ResourceExhaustedError(absl::StrCat("requests in flight: wanted 1 more, all ",
                                                     limits_.max_inflight_requests, " are taken"));
  }
  if (const std::int64_t free = TryAdd(bytes_, bytes, limits_.max_inflight_bytes); free >= 0) {
    requests_.fetch_sub(1, std::memory_order_relaxed);
    model.RecordRejection(Rejection::kInflightBytes);
    return absl::ResourceExhaustedError(absl::StrCat("bytes in flight: wanted ", bytes, ", ", free,
                                                     " of ", limits_.max_inflight_bytes,
                                                     " are free"));
  }
  metrics_.AddInflightBytes(bytes);
  return Lease(this, bytes);
}

void Admission::Return(std::int64_t bytes) {
  metrics_.AddInflightBytes(-bytes);
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  // Release: whoever waits for the last request to leave also sees what its owner wrote.
  requests_.fetch_sub(1, std::memory_order_release);
}

}  // namespace normd
