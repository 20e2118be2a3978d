#include "client/fleet/health_prober.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/mutex.h"

namespace normd::client {
namespace {

// The least time between two rounds, even when hurried.
constexpr Duration kLeastProbe = std::chrono::milliseconds(50);
// Lets gRPC's own deadline come first.
constexpr Duration kDeadlineSlack = std::chrono::milliseconds(200);
constexpr Duration kLeastResolve = std::chrono::seconds(1);

}  // namespace

struct HealthProber::Checks {
  Mutex mutex;
  // The deadline of each pending response.
  std::map<const Server*, TimePoint> asked ABSL_GUARDED_BY(mutex);
};

HealthProber::HealthProber(std::shared_ptr<ServerSet> servers, std::vector<ServerName> names,
                           const ProberOptions& options)
    : servers_(std::move(servers)),
      names_(std::move(names)),
      options_(options),
      checks_(std::make_shared<Checks>()),
      prober_(
          "health", std::max(options.interval, kLeastProbe), [this] { Probe(); }, kLeastProbe) {
  if (!CanChange(names_)) return;
  // The names have just been resolved.
  const auto work = [this, is_first = true]() mutable {
    if (!std::exchange(is_first, false)) Resolve();
  };
  resolver_.emplace("resolver", std::max(options.resolve_interval, kLeastResolve), work,
                    kLeastResolve);
}

void HealthProber::Hurry() {
  prober_.Hurry();
  if (resolver_.has_value()) resolver_->Hurry();
}

// gRPC may hold a call beyond its deadline while its connection takes no bytes, as with a server
// that the network has cut off. So the deadline is kept here too.
bool HealthProber::IsDue(const std::shared_ptr<Server>& server) {
  const TimePoint now = SteadyClock().Now();
  const TimePoint deadline = now + options_.timeout + kDeadlineSlack;
  {
    MutexLock lock(checks_->mutex);
    const auto [at, inserted] = checks_->asked.emplace(server.get(), deadline);
    if (inserted) return true;
    if (now < at->second) return false;
    at->second = deadline;
  }
  servers_->Observe(*server, absl::DeadlineExceededError("no response in time"));
  return false;
}

void HealthProber::Probe() {
  for (const std::shared_ptr<Server>& server : servers_->servers()) {
    if (!IsDue(server)) continue;
    // The set takes the response even if the prober is gone.
    server->client->CheckHealthAsync(
        "", options_.timeout,
        [set = servers_, checks = checks_, server](const absl::StatusOr<HealthStatus>& health) {
          set->Observe(*server, health);
          MutexLock lock(checks->mutex);
          checks->asked.erase(server.get());
        });
  }
}

void HealthProber::Resolve() {
  const auto addresses = options_.resolver(names_);
  // A resolver's failure says nothing about the servers: the known ones stay.
  if (addresses.ok() && servers_->Update(*addresses).ok()) prober_.Hurry();
}

}  // namespace normd::client
