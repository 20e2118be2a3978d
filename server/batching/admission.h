// The server's budgets: how many requests, and how many of their bytes, may be inside at once.

#ifndef NORMD_SERVER_BATCHING_ADMISSION_H_
#define NORMD_SERVER_BATCHING_ADMISSION_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/callers/caller.h"
#include "server/metrics/metrics.h"

namespace normd {

// Whom a request counts against, from the narrowest to the widest. Each kind has a share.
enum class HolderKind { kConnection, kPeer };  // A call's identity, if it has one, is its peer.
inline constexpr std::size_t kHolderKindCount = 2;

// What a request cannot do without.
enum class Needs { kLane, kNothing };

struct AdmissionLimits {
  std::int64_t max_inflight_bytes = std::int64_t{1} << 30;  // Inputs plus outputs.
  std::int64_t max_inflight_requests = 16384;
  // How much a holder may have of each budget: this share of what is free and its own together. So
  // alone on the server it has this share of the whole, and however many holders take what they
  // can, something stays free. 1: no bound.
  double max_connection_share = 1;
  // Requests of one connection that compute, streams among them; 0: no bound.
  std::int64_t max_connection_calls = 0;
  double max_peer_share = 1;
  // The part of max_inflight_bytes that growing leases leave to the one that overdraws; at most
  // half is.
  std::int64_t overdraft_bytes = std::int64_t{64} << 20;
  // The sum over all growing leases of the largest step each may take unasked; 0: as much as
  // max_inflight_bytes.
  std::int64_t max_chunk_bytes = 0;
};

// Thread-safe; lock-free but for leases that wait. Every front end passes every request through the
// one instance.
//
// A lease counts what is held. A unary request's is its inputs and its output, known when it is
// decoded. A stream's begins with nothing and grows with what comes: whoever owns it asks MayGrow
// before asking its client for more, adds what then came, whatever it is, and returns what has
// left. So the budget is exceeded by no more than what growing leases may take unasked, which has a
// budget of its own.
//
// A growing lease is never refused once it is there. While it may not grow it waits (AwaitRoom), in
// order of arrival, and is called when it may take one step. Leases that wait for each other hold
// the budget between them, so when none can be called, one of them overdraws: it grows without
// asking until it has returned what it took (EndOverdraft). There is one overdraft at a time, and
// peers have it in turn.
//
// Nothing stands still: while anybody waits, either a lease has just been called, and takes its
// step or ends, or one overdraws. Its owner sees to it that an overdraft ends in bounded time (the
// client is given up otherwise), and each one ends with a step that was wanted. So everybody who
// waits has an overdraft, or room, in bounded time.
class Admission {
 public:
  // Waits for room.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // It may take one step; with `overdraft` as many as it likes until EndOverdraft. Called once
    // for each AwaitRoom, on any thread, with no lock held, or never when StopAwaiting came first.
    virtual void OnRoom(bool overdraft) = 0;
  };

  // A request's part of the budgets; returns it on destruction. Move-only, but not while it waits
  // or overdraws. The Admission and the account's outlive it. One thread at a time.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    // Whether it is one; a default-constructed one is not.
    bool active() const { return owner_ != nullptr; }
    std::int64_t bytes() const { return amounts_[static_cast<std::size_t>(Resource::kBytes)]; }
    // What has come is there, so this is never refused.
    void Add(std::int64_t bytes);
    // Requires bytes <= bytes(). May call waiters: no lock is held.
    void Return(std::int64_t bytes);

   private:
    friend class Admission;
    explicit Lease(Admission* owner) : owner_(owner) {}
    void Swap(Lease& other) noexcept;

    Admission* owner_ = nullptr;
    std::array<Holding*, kHolderKindCount> holders_{};  // The account's that have a bound.
    bool of_identity_ = false;                          // The last of them.
    std::atomic<std::int64_t>* calls_ = nullptr;        // Of the connection, which count this one.
    std::array<std::int64_t, kResourceCount> amounts_{};
    // Set when it is called from the line, by whichever thread does that.
    std::atomic<std::int64_t> expected_bytes_{0};  // Until its step has come.
    std::atomic<bool> overdraws_{false};           // Until EndOverdraft.
  };

  Admission(AdmissionLimits limits, Metrics& metrics);

  // ResourceExhausted, naming the budget, what was asked for and what is free, when it does not
  // fit or the caller has its share; Unavailable after Close, or when it needs a lane while not
  // ready. Counts the refusal with `model`. A request larger than the whole budget is
  // InvalidArgument: no retry will help. A holder that has nothing inside may exceed its share with
  // one request, if an eighth of the budget stays free or nobody else is inside. An identity's
  // limits hold whatever is free; what exceeds one of them alone is InvalidArgument too. What
  // needs a lane is bounded by max_connection_calls as well.
  absl::StatusOr<Lease> Admit(std::int64_t bytes, ModelMetrics& model, Needs needs = Needs::kLane,
                              CallAccount account = {});
  // A lease that grows, by at most `chunk_bytes` in an unasked step.
  absl::StatusOr<Lease> AdmitStream(std::int64_t chunk_bytes, ModelMetrics& model,
                                    CallAccount account = {});

  // Takes so many bytes more, for a lease of Admit; the refusals are Admit's. After one the lease
  // is of no use.
  absl::Status TakeMore(Lease& lease, std::int64_t bytes, ModelMetrics& model) {
    return Take(lease, Resource::kBytes, bytes, model);
  }

  // Whether the lease may take a step now.
  bool MayGrow(const Lease& lease) const;
  // Calls the waiter when the lease may take a step of about `step_bytes`, perhaps at once.
  void AwaitRoom(Lease& lease, std::int64_t step_bytes, std::weak_ptr<Waiter> waiter);
  // Without effect on a lease that does neither.
  void StopAwaiting(Lease& lease);
  void EndOverdraft(Lease& lease);

  // Refuses everything from now on.
  void Close() { closed_.store(true, std::memory_order_relaxed); }
  // Not ready: no lane is left that works.
  void SetReady(bool ready) { ready_.store(ready, std::memory_order_relaxed); }
  bool ready() const { return ready_.load(std::memory_order_relaxed); }

  std::int64_t inflight_requests() const { return total(Resource::kRequests); }
  std::int64_t inflight_bytes() const { return total(Resource::kBytes); }
  std::int64_t chunk_bytes() const { return total(Resource::kChunkBytes); }
  std::int64_t waiting() const { return waiting_.load(); }

 private:
  struct Line {
    Lease* lease;
    std::int64_t step_bytes;
    // weak: the waiter may end at any time.
    std::weak_ptr<Waiter> waiter;
  };
  struct Call {
    std::weak_ptr<Waiter> waiter;
    bool overdraft;
  };

  std::int64_t total(Resource resource) const {
    return totals_[static_cast<std::size_t>(resource)].load(std::memory_order_acquire);
  }
  absl::StatusOr<Lease> Enter(Needs needs, const CallAccount& account, ModelMetrics& model);
  absl::Status CountCall(Lease& lease, Caller& connection, ModelMetrics& model) const;
  absl::Status Take(Lease& lease, Resource resource, std::int64_t amount, ModelMetrics& model);
  absl::Status CheckLimit(const Lease& lease, Resource resource, std::int64_t held,
                          std::int64_t amount, ModelMetrics& model);
  absl::Status CheckShares(Lease& lease, Resource resource, std::int64_t amount,
                           ModelMetrics& model);
  void Give(Lease& lease, Resource resource, std::int64_t amount);
  void End(Lease& lease);
  bool HasRoom(const Lease& lease, std::int64_t expected) const;
  void CallWaiters();
  std::vector<Call> NextCalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Call NextOverdraft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AdmissionLimits limits_;
  const std::array<std::int64_t, kResourceCount> budgets_;
  const std::array<double, kHolderKindCount> shares_;
  Metrics& metrics_;
  std::array<std::atomic<std::int64_t>, kResourceCount> totals_{};
  // Relaxed: a request that races with the change is served or refused, and both are right.
  std::atomic<bool> closed_{false};
  std::atomic<bool> ready_{true};

  // Sequentially consistent, with the total of the bytes: either whoever returns bytes sees the
  // waiter and calls it, or the waiter sees the bytes.
  std::atomic<std::int64_t> waiting_{0};
  // What leases that were called from the line are about to add.
  std::atomic<std::int64_t> expected_bytes_{0};
  Mutex mutex_;
  std::vector<Line> line_ ABSL_GUARDED_BY(mutex_);
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;  // One thread at a time calls waiters.
  const Lease* overdrawn_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t overdrafts_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_ADMISSION_H_
