#include "client/fleet/health_prober.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

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
      checks_(std::make_shared<Checks>()) {
  prober_ = std::thread([this] { Probe(); });
  if (CanChange(names_)) resolver_ = std::thread([this] { Resolve(); });
}

HealthProber::~HealthProber() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  prober_.join();
  if (resolver_.joinable()) resolver_.join();
}

void HealthProber::Hurry() {
  MutexLock lock(mutex_);
  hurry_probe_ = true;
  hurry_resolve_ = true;
  wake_.SignalAll();
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
  for (;;) {
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
    const TimePoint least = SteadyClock().Now() + kLeastProbe;
    const TimePoint next = SteadyClock().Now() + std::max(options_.interval, kLeastProbe);
    MutexLock lock(mutex_);
    hurry_probe_ = false;
    while (!stopping_ && SteadyClock().Now() < (hurry_probe_ ? least : next)) {
      wake_.WaitUntil(mutex_, hurry_probe_ ? least : next);
    }
    if (stopping_) return;
  }
}

void HealthProber::Resolve() {
  for (;;) {
    const TimePoint least = SteadyClock().Now() + kLeastResolve;
    const TimePoint next = SteadyClock().Now() + std::max(options_.resolve_interval, kLeastResolve);
    {
      MutexLock lock(mutex_);
      hurry_resolve_ = false;
      while (!stopping_ && SteadyClock().Now() < (hurry_resolve_ ? least : next)) {
        wake_.WaitUntil(mutex_, hurry_resolve_ ? least : next);
      }
      if (stopping_) return;
    }
    const auto addresses = options_.resolver(names_);
    // A resolver's failure says nothing about the servers: the known ones stay.
    if (addresses.ok() && servers_->Update(*addresses).ok()) {
      MutexLock lock(mutex_);
      hurry_probe_ = true;
      wake_.SignalAll();
    }
  }
}

}  // namespace normd::client
