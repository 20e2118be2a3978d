#include "server/rpc/readiness.h"

#include "server/rpc/health_service.h"

namespace normd {
namespace {

constexpr char kService[] = "normd.v1.NormService";

std::string HealthName(const std::string& model) { return std::string(kService) + "/" + model; }

}  // namespace

void Readiness::SetModel(const std::string& name, bool loaded) {
  MutexLock lock(mutex_);
  // This model's name alone is told: there may be thousands of others.
  if (loaded) {
    models_.insert(name);
    if (health_ != nullptr) health_->Set(HealthName(name), started_ && !stopped_);
  } else {
    models_.erase(name);
    if (health_ != nullptr) health_->Forget(HealthName(name));
  }
}

void Readiness::Start() {
  MutexLock lock(mutex_);
  started_ = true;
  Publish();
}

void Readiness::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  Publish();
}

bool Readiness::ready() const {
  MutexLock lock(mutex_);
  return started_ && !stopped_;
}

void Readiness::SetRoom(bool room) {
  MutexLock lock(mutex_);
  room_ = room;
  metrics_.SetReady(started_ && !stopped_ && room_);
}

void Readiness::Attach(HealthService* health) {
  MutexLock lock(mutex_);
  health_ = health;
  Publish();
}

void Readiness::Detach() {
  MutexLock lock(mutex_);
  health_ = nullptr;
}

void Readiness::Publish() {
  const bool serving = started_ && !stopped_;
  metrics_.SetReady(serving && room_);
  if (health_ == nullptr) return;
  health_->Set("", serving);
  health_->Set(kService, serving);
  for (const std::string& name : models_) health_->Set(HealthName(name), serving);
}

}  // namespace normd
