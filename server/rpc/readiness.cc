#include "server/rpc/readiness.h"

namespace normd {
namespace {

constexpr char kService[] = "normd.v1.NormService";

}  // namespace

void Readiness::SetModel(const std::string& name, bool loaded) {
  MutexLock lock(mutex_);
  models_[name] = loaded;
  Publish();
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

void Readiness::Attach(grpc::HealthCheckServiceInterface* health) {
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
  metrics_.SetReady(serving);
  if (health_ == nullptr) return;
  health_->SetServingStatus("", serving);
  health_->SetServingStatus(kService, serving);
  for (const auto& [name, loaded] : models_) {
    health_->SetServingStatus(std::string(kService) + "/" + name, serving && loaded);
  }
}

}  // namespace normd
