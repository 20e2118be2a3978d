// The server's budgets: how many requests, and how many of their bytes, may be inside at once.

#ifndef NORMD_SERVER_BATCHING_ADMISSION_H_
#define NORMD_SERVER_BATCHING_ADMISSION_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/callers/caller.h"
#include "server/metrics/metrics.h"

namespace normd {

// The holders against which a request counts, from the narrowest to the widest. Each kind has a
// share.
enum class HolderKind { kConnection, kPeer };  // A call's identity, if it has one, is its peer.
inline constexpr std::size_t kHolderKindCount = 2;

// What a request needs to be admitted: a working lane and an open server (see Close); the lane
// alone, if a lease has held a part of it; the open server alone; or only room, as a request for
// the server's health.
enum class Needs { kLane, kLaneOfHeld, kOpenServer, kRoom };

struct AdmissionLimits {
  std::int64_t max_inflight_bytes = std::int64_t{1} << 30;  // Inputs plus outputs.
  std::int64_t max_inflight_requests = 16384;
  // The part of each budget that one holder may have: this share of the free amount and its own
  // together. Alone on the server it can thus have this share of the whole, and however many
  // holders take all they can, some stays free. 1: no bound.
  double max_connection_share = 1;
  // Requests of one connection that compute, streams among them; 0: no bound.
  std::int64_t max_connection_calls = 0;
  double max_peer_share = 1;
  // The part of max_inflight_bytes that growing leases leave to the one with the overdraft; at most
  // half.
  std::int64_t overdraft_bytes = std::int64_t{64} << 20;
  // The sum over all growing leases of the largest step that each may take without asking; 0:
  // max_inflight_bytes.
  std::int64_t max_chunk_bytes = 0;
};

// Thread-safe; lock-free except for leases that wait. Every front end passes every request through
// the one instance.
//
// A lease counts held bytes. A unary request's lease has its inputs and outputs, known after
// decoding. A stream's begins empty and grows: its owner asks MayGrow before asking its client for
// more, adds whatever then arrives, and returns what has left. So the budget is exceeded only by
// what growing leases may take without asking, which has a budget of its own.
//
// An admitted growing lease is never refused. While it may not grow it waits (AwaitRoom), in order
// of arrival, and is called when it may take one step. Leases that wait for each other hold the
// budget between them, so when none can be called, one of them gets an overdraft: it grows without
// asking until it has returned what it took (EndOverdraft). There is one overdraft at a time, and
// peers take turns.
//
// There is always progress: while any lease waits, either a lease has just been called, and takes
// its step or ends, or one has the overdraft. Its owner ends an overdraft in bounded time
// (otherwise it drops the client), and each one ends with a wanted step. So every waiting lease
// gets an overdraft, or room, in bounded time.
class Admission {
 public:
  // Waits for room.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // The lease may take one step; with `overdraft` any number until EndOverdraft. Called once for
    // each AwaitRoom, on any thread, with no lock held, or never if StopAwaiting came first.
    virtual void OnRoom(bool overdraft) = 0;
  };

  // A request's share of the budgets, returned on destruction. Move-only, but not while it waits or
  // overdraws. The Admission and the account outlive it. One thread at a time.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    // Whether it was admitted; a default-constructed one was not.
    bool active() const { return owner_ != nullptr; }
    std::int64_t bytes() const { return amounts_[static_cast<std::size_t>(Resource::kBytes)]; }
    // Never refused, because the bytes have already arrived.
    void Add(std::int64_t bytes);
    // Requires bytes <= bytes(). May call waiters: no lock is held.
    void Return(std::int64_t bytes);

   private:
    friend class Admission;
    explicit Lease(Admission* owner) : owner_(owner) {}
    void Swap(Lease& other) noexcept;

    Admission* owner_ = nullptr;
    std::array<Holding*, kHolderKindCount> holders_{};  // The account's holders that have a bound.
    bool of_identity_ = false;                          // The last holder is an identity.
    // The connection's count, which includes this lease.
    std::atomic<std::int64_t>* calls_ = nullptr;
    std::array<std::int64_t, kResourceCount> amounts_{};
    // Set by the thread that calls the waiter.
    std::atomic<std::int64_t> expected_bytes_{0};  // Until its step has come.
    std::atomic<bool> overdraws_{false};           // Until EndOverdraft.
  };

  Admission(AdmissionLimits limits, Metrics& metrics);

  // ResourceExhausted, naming the budget, the requested and the free amount, when it does not fit
  // or the caller has its share; Unavailable after Close if it needs an open server, or when it
  // needs a lane while not ready.
  // Counts the refusal with `model`. InvalidArgument for a request larger than the whole budget, or
  // than an identity's limit: no retry helps. A holder with nothing inside may exceed its share
  // with one request if an eighth of the budget stays free or nobody else is inside. An identity's
  // limits hold whatever is free. max_connection_calls also bounds requests that need a lane.
  absl::StatusOr<Lease> Admit(std::int64_t bytes, ModelMetrics& model, Needs needs = Needs::kLane,
                              CallAccount account = {});
  // Admits a growing lease, whose steps without asking have at most `chunk_bytes`.
  absl::StatusOr<Lease> AdmitStream(std::int64_t chunk_bytes, ModelMetrics& model,
                                    CallAccount account = {});

  // Takes this many more bytes for a lease of Admit; the refusals are Admit's for the sum. After
  // one the lease is useless.
  absl::Status TakeMore(Lease& lease, std::int64_t bytes, ModelMetrics& model) {
    return Take(lease, Resource::kBytes, bytes, model);
  }

  // Whether the lease may take a step now.
  bool MayGrow(const Lease& lease) const;
  // Calls the waiter when the lease may take a step of about `step_bytes`, perhaps at once. May
  // throw std::bad_alloc, and then it does not wait.
  void AwaitRoom(Lease& lease, std::int64_t step_bytes, std::weak_ptr<Waiter> waiter);
  // No effect on a lease that neither waits nor overdraws.
  void StopAwaiting(Lease& lease);
  void EndOverdraft(Lease& lease);

  // Refuses everything from now on that needs an open server.
  void Close() { closed_.store(true, std::memory_order_relaxed); }
  // Unavailable after Close; counts the refusal with `model`.
  absl::Status CheckOpen(ModelMetrics& model) const;
  // Not ready: no lane works any more.
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
  std::optional<Call> NextCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Line>::iterator NextOverdraft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AdmissionLimits limits_;
  const std::array<std::int64_t, kResourceCount> budgets_;
  const std::array<double, kHolderKindCount> shares_;
  Metrics& metrics_;
  std::array<std::atomic<std::int64_t>, kResourceCount> totals_{};
  // Relaxed: a request that races with the change is served or refused, and both are right.
  std::atomic<bool> closed_{false};
  std::atomic<bool> ready_{true};

  // Sequentially consistent, like the total of the bytes: either the thread that returns bytes sees
  // the waiter and calls it, or the waiter sees the bytes.
  std::atomic<std::int64_t> waiting_{0};
  // Bytes that called leases are about to add.
  std::atomic<std::int64_t> expected_bytes_{0};
  Mutex mutex_;
  std::vector<Line> line_ ABSL_GUARDED_BY(mutex_);
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;  // One thread at a time calls waiters.
  const Lease* overdrawn_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t overdrafts_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_ADMISSION_H_
