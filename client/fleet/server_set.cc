#include "client/fleet/server_set.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd::client {
namespace {

// The state that a check's result implies.
ServerState StateOf(const absl::StatusOr<HealthStatus>& health, bool is_silent,
                    ServerState before) {
  if (health.ok()) {
    return *health == HealthStatus::kServing ? ServerState::kServing : ServerState::kNotServing;
  }
  switch (health.status().code()) {
    case absl::StatusCode::kDeadlineExceeded: return is_silent ? ServerState::kSilent : before;
    // It answers, but refuses this caller: calls will show its state.
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted: return ServerState::kServing;
    default: return ServerState::kDown;
  }
}

}  // namespace

ServerSet::ServerSet(BalancePolicy policy, int silent_after, MakeClient make_client)
    : silent_after_(silent_after),
      make_client_(std::move(make_client)),
      picker_(policy, std::random_device{}()) {}

absl::Status ServerSet::Update(const std::vector<ServerAddress>& addresses) {
  if (addresses.empty()) return absl::NotFoundError("server: no addresses, wanted at least one");
  std::vector<std::shared_ptr<Server>> next;
  const std::vector<std::shared_ptr<Server>> known = servers();
  for (const ServerAddress& address : addresses) {
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const auto& server) { return server->address == address; });
    if (found != known.end()) {
      next.push_back(*found);
      continue;
    }
    absl::StatusOr<std::unique_ptr<Client>> client = make_client_(address);
    if (!client.ok()) return client.status();
    next.push_back(std::make_shared<Server>(address, *std::move(client)));
  }
  MutexLock lock(mutex_);
  servers_ = std::move(next);
  changed_.SignalAll();
  return absl::OkStatus();
}

std::shared_ptr<Server> ServerSet::Begin(const Server* avoid) {
  MutexLock lock(mutex_);
  std::vector<Candidate> candidates;
  candidates.reserve(servers_.size());
  std::optional<std::size_t> avoided;
  for (const auto& server : servers_) {
    if (server.get() == avoid) avoided = candidates.size();
    candidates.push_back({server->state, server->outstanding});
  }
  const std::optional<std::size_t> picked = picker_.Pick(candidates, avoided);
  if (!picked) return nullptr;
  Server& server = *servers_[*picked];
  ++server.outstanding;
  ++server.calls;
  return servers_[*picked];
}

void ServerSet::Register(Server& server, std::shared_ptr<Attempt> attempt) {
  MutexLock lock(mutex_);
  server.attempts.insert(std::move(attempt));
}

bool ServerSet::End(Server& server, const std::shared_ptr<Attempt>& attempt,
                    const absl::Status& status) {
  MutexLock lock(mutex_);
  --server.outstanding;
  server.attempts.erase(attempt);
  if (status.ok()) return false;
  ++server.failed;
  if (!absl::IsUnavailable(status) || server.state >= ServerState::kNotServing) return false;
  server.state = ServerState::kDown;
  server.why = std::string(status.message());
  return true;
}

void ServerSet::Observe(Server& server, const absl::StatusOr<HealthStatus>& health) {
  std::vector<std::shared_ptr<Attempt>> abandoned;
  {
    MutexLock lock(mutex_);
    const bool missed = absl::IsDeadlineExceeded(health.status());
    server.missed_checks = missed ? server.missed_checks + 1 : 0;
    server.state = StateOf(health, server.missed_checks >= silent_after_, server.state);
    server.why = health.ok() ? absl::StrCat("it says ", Name(*health))
                             : std::string(health.status().message());
    if (server.state == ServerState::kSilent) {
      abandoned.assign(server.attempts.begin(), server.attempts.end());
    }
    changed_.SignalAll();
  }
  for (const auto& attempt : abandoned) attempt->Abandon();
}

std::vector<std::shared_ptr<Server>> ServerSet::servers() const {
  MutexLock lock(mutex_);
  return servers_;
}

std::vector<ServerCounts> ServerSet::counts() const {
  MutexLock lock(mutex_);
  std::vector<ServerCounts> counts;
  for (const auto& server : servers_) {
    counts.push_back({server->address.target, server->state, server->calls, server->failed});
  }
  return counts;
}

bool ServerSet::WaitUntilServing(TimePoint deadline) const {
  MutexLock lock(mutex_);
  for (;;) {
    bool asked = true;
    for (const auto& server : servers_) {
      if (server->state == ServerState::kServing) return true;
      asked = asked && server->state != ServerState::kUnknown;
    }
    if (asked || SteadyClock().Now() >= deadline) return false;
    changed_.WaitUntil(mutex_, deadline);
  }
}

absl::Status ServerSet::Unavailable() const {
  constexpr std::size_t kTold = 8;
  MutexLock lock(mutex_);
  std::string text = absl::StrCat("none of ", servers_.size(), " servers can take the call");
  for (std::size_t i = 0; i < servers_.size() && i < kTold; ++i) {
    absl::StrAppend(&text, i == 0 ? ": " : "; ", servers_[i]->address.target, " is ",
                    Name(servers_[i]->state), servers_[i]->why.empty() ? "" : ", ",
                    servers_[i]->why);
  }
  return absl::UnavailableError(text);
}

}  // namespace normd::client
