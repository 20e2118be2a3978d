#include "server/rpc/readiness.h"

#include <utility>

#include "server/rpc/health_service.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

std::string HealthName(const std::string& service, const std::string& model) {
  return service + "/" + model;
}

}  // namespace

void Readiness::SetModel(const std::string& name, bool loaded) {
  MutexLock lock(mutex_);
  const bool served = serving();
  if (loaded) {
    models_.insert(name);
  } else {
    models_.erase(name);
  }
  if (serving() != served) {
    if (served) {
      spdlog::warn("health is NOT_SERVING: no model is loaded any more");
    } else {
      spdlog::info("health is SERVING: model {} is loaded", name);
    }
    // The name that is gone is told below.
    Publish();
  }
  if (health_ == nullptr) return;
  // This model's name alone is told: there may be thousands of others.
  for (const std::string& service : services_) {
    if (loaded) {
      health_->Set(HealthName(service, name), serving());
    } else {
      health_->Forget(HealthName(service, name));
    }
  }
}

void Readiness::Start() {
  MutexLock lock(mutex_);
  started_ = true;
  if (models_.empty()) {
    spdlog::warn("no model is loaded{}", serving() ? "" : ": health is NOT_SERVING until one is");
  }
  Publish();
}

void Readiness::Stop(const char* why) {
  MutexLock lock(mutex_);
  if (!stopped_) why_stopped_ = why;
  stopped_ = true;
  Publish();
}

bool Readiness::ready() const {
  MutexLock lock(mutex_);
  return serving();
}

std::string Readiness::WhyNot() const {
  MutexLock lock(mutex_);
  if (stopped_) return why_stopped_;
  if (!started_) return "the server is starting";
  if (!serving()) return "no model is loaded";
  return room_ ? "" : "no connection is left for a new client (--max_connections)";
}

void Readiness::SetRoom(bool room) {
  MutexLock lock(mutex_);
  room_ = room;
  metrics_.SetReady(serving() && room_);
}

void Readiness::Attach(HealthService* health, std::vector<std::string> services) {
  MutexLock lock(mutex_);
  health_ = health;
  services_ = std::move(services);
  Publish();
}

void Readiness::Detach() {
  MutexLock lock(mutex_);
  health_ = nullptr;
}

void Readiness::Publish() {
  metrics_.SetReady(serving() && room_);
  if (health_ == nullptr) return;
  health_->Set("", serving());
  for (const std::string& service : services_) {
    health_->Set(service, serving());
    for (const std::string& model : models_) health_->Set(HealthName(service, model), serving());
  }
}

}  // namespace normd
