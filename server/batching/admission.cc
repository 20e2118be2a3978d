#include "server/batching/admission.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

constexpr std::size_t Index(Resource resource) { return static_cast<std::size_t>(resource); }

// Adds `amount` unless the sum would exceed `limit`, so the limit is never exceeded. Returns the
// free amount at a refusal, or -1 on success. Relaxed: the counters guard no memory, and one
// modification order is enough.
std::int64_t TryAdd(std::atomic<std::int64_t>& sum, std::int64_t amount, std::int64_t limit) {
  std::int64_t current = sum.load(std::memory_order_relaxed);
  do {
    // Growing leases may have passed the limit.
    if (amount > limit - current) return std::max<std::int64_t>(limit - current, 0);
  } while (!sum.compare_exchange_weak(current, current + amount, std::memory_order_relaxed));
  return -1;
}

// Judges by `free` and the holder's amount, in double, where no sum of budgets overflows; the
// rounding beyond 2^53 is negligible beside a share.
bool WithinShare(double share, std::int64_t held, std::int64_t wanted, std::int64_t free) {
  return static_cast<double>(held) + static_cast<double>(wanted) <=
         share * (static_cast<double>(held) + static_cast<double>(free));
}

// `never_fits`: the lease alone is too large, so no retry helps.
absl::Status Refusal(const std::string& message, bool never_fits) {
  return never_fits ? absl::InvalidArgumentError(message) : absl::ResourceExhaustedError(message);
}

constexpr const char* kResourceNames[] = {"requests in flight", "bytes in flight",
                                          "bytes of streams' next chunks"};
constexpr const char* kHolderNames[] = {"connection", "peer"};

}  // namespace

Admission::Lease::Lease(Lease&& other) noexcept { Swap(other); }

Admission::Lease& Admission::Lease::operator=(Lease&& other) noexcept {
  Lease taken(std::move(other));
  Swap(taken);
  return *this;
}

void Admission::Lease::Swap(Lease& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(holders_, other.holders_);
  std::swap(of_identity_, other.of_identity_);
  std::swap(calls_, other.calls_);
  std::swap(amounts_, other.amounts_);
}

Admission::Lease::~Lease() {
  if (owner_ != nullptr) owner_->End(*this);
}

void Admission::Lease::Add(std::int64_t bytes) {
  if (const std::int64_t expected = expected_bytes_.exchange(0); expected > 0) {
    owner_->expected_bytes_.fetch_sub(expected);
  }
  if (bytes == 0) return;
  owner_->totals_[Index(Resource::kBytes)].fetch_add(bytes, std::memory_order_relaxed);
  for (Holding* holder : holders_) {
    if (holder != nullptr) {
      (*holder)[Resource::kBytes].fetch_add(bytes, std::memory_order_relaxed);
    }
  }
  amounts_[Index(Resource::kBytes)] += bytes;
  owner_->metrics_.AddInflightBytes(bytes);
}

void Admission::Lease::Return(std::int64_t bytes) {
  assert(bytes <= this->bytes());
  owner_->Give(*this, Resource::kBytes, bytes);
  if (owner_->waiting_.load() > 0) owner_->CallWaiters();
}

Admission::Admission(AdmissionLimits limits, Metrics& metrics)
    : limits_(limits),
      budgets_{limits.max_inflight_requests, limits.max_inflight_bytes,
               limits.max_chunk_bytes > 0 ? limits.max_chunk_bytes : limits.max_inflight_bytes},
      shares_{limits.max_connection_share, limits.max_peer_share},
      metrics_(metrics) {}

absl::StatusOr<Admission::Lease> Admission::Admit(std::int64_t bytes, ModelMetrics& model,
                                                  Needs needs, CallAccount account) {
  assert(bytes >= 0);
  if (bytes > limits_.max_inflight_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("request: needs ", bytes,
                                                   " bytes, wanted at most the server's budget of ",
                                                   limits_.max_inflight_bytes));
  }
  absl::StatusOr<Lease> lease = Enter(needs, account, model);
  if (!lease.ok()) return lease;
  absl::Status status = Take(*lease, Resource::kBytes, bytes, model);
  if (!status.ok()) return status;
  return lease;
}

absl::StatusOr<Admission::Lease> Admission::AdmitStream(std::int64_t chunk_bytes,
                                                        ModelMetrics& model, CallAccount account) {
  absl::StatusOr<Lease> lease = Enter(Needs::kLane, account, model);
  if (!lease.ok()) return lease;
  absl::Status status = Take(*lease, Resource::kChunkBytes, chunk_bytes, model);
  if (!status.ok()) return status;
  return lease;
}

absl::Status Admission::CheckOpen(ModelMetrics& model) const {
  if (!closed_.load(std::memory_order_relaxed)) return absl::OkStatus();
  model.RecordRejection(Rejection::kDraining);
  return absl::UnavailableError("the server is shutting down");
}

absl::StatusOr<Admission::Lease> Admission::Enter(Needs needs, const CallAccount& account,
                                                  ModelMetrics& model) {
  const bool needs_lane = needs == Needs::kLane || needs == Needs::kLaneOfHeld;
  if (needs == Needs::kLane || needs == Needs::kOpenServer) {
    if (absl::Status status = CheckOpen(model); !status.ok()) return status;
  }
  if (needs_lane && !ready()) {
    model.RecordRejection(Rejection::kNotReady);
    return absl::UnavailableError("the server has no working lane");
  }
  Lease lease(this);  // If the rest is refused, it returns what it has.
  // Without a bound nothing needs to be counted by connection.
  if (account.connection != nullptr && shares_[0] < 1) {
    lease.holders_[0] = &account.connection->holding;
  }
  if (account.party != nullptr && (shares_[1] < 1 || account.is_identity)) {
    lease.holders_[1] = &account.party->holding;
  }
  lease.of_identity_ = account.is_identity;
  if (needs_lane && account.connection != nullptr) {
    absl::Status status = CountCall(lease, *account.connection, model);
    if (!status.ok()) return status;
  }
  absl::Status status = Take(lease, Resource::kRequests, 1, model);
  if (!status.ok()) return status;
  return lease;
}

absl::Status Admission::CountCall(Lease& lease, Caller& connection, ModelMetrics& model) const {
  if (limits_.max_connection_calls == 0 || !connection.is_one_connection()) {
    return absl::OkStatus();
  }
  if (TryAdd(connection.calls, 1, limits_.max_connection_calls) >= 0) {
    model.RecordRejection(Rejection::kConnectionCalls);
    return absl::ResourceExhaustedError(
        absl::StrCat("calls of this connection: ", limits_.max_connection_calls,
                     " are inside, wanted at most so many (--max_connection_calls)"));
  }
  lease.calls_ = &connection.calls;
  return absl::OkStatus();
}

absl::Status Admission::Take(Lease& lease, Resource resource, std::int64_t amount,
                             ModelMetrics& model) {
  if (amount == 0) return absl::OkStatus();
  const std::int64_t budget = budgets_[Index(resource)];
  const std::int64_t free = TryAdd(totals_[Index(resource)], amount, budget);
  if (free >= 0) {
    const bool of_requests = resource == Resource::kRequests;
    model.RecordRejection(of_requests ? Rejection::kInflightRequests : Rejection::kInflightBytes);
    const std::string message =
        absl::StrCat(kResourceNames[Index(resource)], ": wanted ", amount,
                     of_requests ? " more, " : ", ", free, " of ", budget, " are free");
    return Refusal(message, !of_requests && lease.amounts_[Index(resource)] + amount > budget);
  }
  if (resource == Resource::kBytes) metrics_.AddInflightBytes(amount);
  // The lease owns it from here on, and returns it if its holder's share forbids it.
  lease.amounts_[Index(resource)] += amount;
  return CheckShares(lease, resource, amount, model);
}

// Amounts are added first and judged then, so all concurrent additions see them and together do not
// exceed the share.
absl::Status Admission::CheckShares(Lease& lease, Resource resource, std::int64_t amount,
                                    ModelMetrics& model) {
  const std::int64_t budget = budgets_[Index(resource)];
  const std::int64_t others = std::max<std::int64_t>(total(resource) - amount, 0);
  const std::int64_t free = std::max<std::int64_t>(budget - others, 0);
  const std::int64_t whole = lease.amounts_[Index(resource)];
  const std::int64_t before = whole - amount;  // The lease's own, and no other request's.
  std::array<std::int64_t, kHolderKindCount> held{};
  for (std::size_t kind = 0; kind < kHolderKindCount; ++kind) {
    if (lease.holders_[kind] == nullptr) continue;
    held[kind] = (*lease.holders_[kind])[resource].fetch_add(amount, std::memory_order_relaxed);
  }
  if (absl::Status status = CheckLimit(lease, resource, held.back(), amount, model); !status.ok()) {
    return status;
  }
  for (std::size_t kind = 0; kind < kHolderKindCount; ++kind) {
    if (lease.holders_[kind] == nullptr || shares_[kind] >= 1) continue;
    if (WithinShare(shares_[kind], held[kind], amount, free)) continue;
    const bool has_others = held[kind] != before;
    if (!has_others && (others == before || whole <= free + before - budget / 8)) continue;
    model.RecordRejection(kind == 0 ? Rejection::kConnectionShare : Rejection::kPeerShare);
    return absl::ResourceExhaustedError(
        absl::StrCat(kResourceNames[Index(resource)], ": wanted ", amount, " more, this ",
                     lease.of_identity_ && kind == 1 ? "identity" : kHolderNames[kind], " has ",
                     held[kind], " and ", free, " of ", budget, " are free: together it may have ",
                     shares_[kind], " of that (--max_", kHolderNames[kind], "_share)"));
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckLimit(const Lease& lease, Resource resource, std::int64_t held,
                                   std::int64_t amount, ModelMetrics& model) {
  const Holding* const holder = lease.holders_.back();
  const std::int64_t limit = holder != nullptr ? holder->limit(resource) : 0;
  if (limit == 0 || amount <= limit - held) return absl::OkStatus();
  model.RecordRejection(Rejection::kIdentityLimit);
  const std::string message =
      absl::StrCat(kResourceNames[Index(resource)], ": wanted ", amount,
                   " more, this identity has ", held, " and may have ", limit);
  return Refusal(message, lease.amounts_[Index(resource)] > limit);
}

void Admission::Give(Lease& lease, Resource resource, std::int64_t amount) {
  if (amount == 0) return;
  for (Holding* holder : lease.holders_) {
    if (holder != nullptr) (*holder)[resource].fetch_sub(amount, std::memory_order_relaxed);
  }
  lease.amounts_[Index(resource)] -= amount;
  if (resource == Resource::kBytes) metrics_.AddInflightBytes(-amount);
  // A thread that waits for the last request to leave also sees its owner's writes; for the bytes,
  // see `waiting_`.
  totals_[Index(resource)].fetch_sub(amount);
}

void Admission::End(Lease& lease) {
  StopAwaiting(lease);
  lease.Add(0);  // The expected bytes do not come.
  for (const Resource resource : {Resource::kBytes, Resource::kChunkBytes, Resource::kRequests}) {
    Give(lease, resource, lease.amounts_[Index(resource)]);
  }
  if (lease.calls_ != nullptr) lease.calls_->fetch_sub(1, std::memory_order_relaxed);
  EndOverdraft(lease);
  if (waiting_.load() > 0) CallWaiters();
}

// Growing leases.

bool Admission::MayGrow(const Lease& lease) const {
  // Queues behind leases that already wait.
  return waiting_.load() == 0 && HasRoom(lease, 0);
}

bool Admission::HasRoom(const Lease& lease, std::int64_t expected) const {
  const std::int64_t budget = limits_.max_inflight_bytes;
  const std::int64_t held = totals_[Index(Resource::kBytes)].load() + expected;
  if (held >= std::max(budget - limits_.overdraft_bytes, budget / 2)) return false;
  for (std::size_t kind = 0; kind < kHolderKindCount; ++kind) {
    if (lease.holders_[kind] == nullptr) continue;
    const std::int64_t own = (*lease.holders_[kind])[Resource::kBytes].load();
    const std::int64_t limit = lease.holders_[kind]->limit(Resource::kBytes);
    if (limit > 0 && own >= limit) return false;
    if (shares_[kind] < 1 && !WithinShare(shares_[kind], own, 1, budget - held)) return false;
  }
  return true;
}

void Admission::AwaitRoom(Lease& lease, std::int64_t step_bytes, std::weak_ptr<Waiter> waiter) {
  {
    MutexLock lock(mutex_);
    line_.push_back({&lease, step_bytes, std::move(waiter)});
    waiting_.store(static_cast<std::int64_t>(line_.size()));
  }
  CallWaiters();
}

void Admission::StopAwaiting(Lease& lease) {
  if (waiting_.load() == 0) return;
  MutexLock lock(mutex_);
  const auto mine = std::find_if(line_.begin(), line_.end(),
                                 [&](const Line& line) { return line.lease == &lease; });
  if (mine == line_.end()) return;
  line_.erase(mine);
  waiting_.store(static_cast<std::int64_t>(line_.size()));
}

void Admission::EndOverdraft(Lease& lease) {
  if (!lease.overdraws_.exchange(false)) return;
  {
    MutexLock lock(mutex_);
    overdrawn_ = nullptr;
  }
  CallWaiters();
}

// Waiters are called without the lock, and may bring the same thread back here: the loop below,
// further up its stack, then continues for it. It allocates nothing, because those in the line rely
// on it.
void Admission::CallWaiters() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(calling_, true)) return;
  }
  for (;;) {
    std::optional<Call> call;
    {
      MutexLock lock(mutex_);
      call = NextCall();
      if (!call.has_value()) {
        calling_ = false;
        return;
      }
    }
    if (const std::shared_ptr<Waiter> waiter = call->waiter.lock()) waiter->OnRoom(call->overdraft);
  }
}

// Takes the first lease with room from the line. If none has room, and none overdraws, one gets an
// overdraft.
std::optional<Admission::Call> Admission::NextCall() {
  auto next = std::find_if(line_.begin(), line_.end(), [this](const Line& line) {
    return HasRoom(*line.lease, expected_bytes_.load());
  });
  const bool overdraft = next == line_.end();
  if (!overdraft) {
    next->lease->expected_bytes_.store(next->step_bytes);
    expected_bytes_.fetch_add(next->step_bytes);
  } else if (!line_.empty() && overdrawn_ == nullptr) {
    next = NextOverdraft();
    overdrawn_ = next->lease;
    next->lease->overdraws_.store(true);
  } else {
    return std::nullopt;
  }
  Call call{std::move(next->waiter), overdraft};
  line_.erase(next);
  waiting_.store(static_cast<std::int64_t>(line_.size()));
  return call;
}

// Picks the peer whose last overdraft is longest ago, and its lease that has waited longest. A
// client that lets its overdrafts time out thus delays others by one of them, not by one for each
// of its streams.
std::vector<Admission::Line>::iterator Admission::NextOverdraft() {
  const auto peer = [](const Line& line) { return line.lease->holders_.back(); };
  const auto last = [&](const Line& line) {
    return peer(line) != nullptr ? peer(line)->last_overdraft : 0;
  };
  const auto next = std::min_element(
      line_.begin(), line_.end(), [&](const Line& a, const Line& b) { return last(a) < last(b); });
  if (peer(*next) != nullptr) peer(*next)->last_overdraft = ++overdrafts_;
  return next;
}

}  // namespace normd
