#include "tests/support/fake_shared_device_events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd::testing {

class FakeSharedDeviceEvents::Opened final : public SharedDeviceEvent {
 public:
  Opened(FakeSharedDeviceEvents& events, std::shared_ptr<Event> event)
      : events_(events), event_(std::move(event)) {}
  ~Opened() override {
    std::function<void()> hook;
    {
      MutexLock lock(events_.mutex_);
      --events_.opened_;
      hook = event_->on_closed;
    }
    if (hook) hook();
  }

  absl::StatusOr<bool> Reached() override {
    std::function<void()> hook;
    {
      MutexLock lock(events_.mutex_);
      ++event_->asked;
      hook = event_->on_asked;
    }
    if (hook) hook();
    MutexLock lock(events_.mutex_);
    if (!event_->status.ok()) return event_->status;
    return event_->reached;
  }

 private:
  FakeSharedDeviceEvents& events_;
  const std::shared_ptr<Event> event_;
};

std::string FakeSharedDeviceEvents::Make() {
  MutexLock lock(mutex_);
  std::string handle = absl::StrCat("event ", events_.size());
  // Of any bytes, such as are no text.
  handle.resize(kEventHandleBytes, '\xff');
  events_.emplace(handle, std::make_shared<Event>());
  return handle;
}

void FakeSharedDeviceEvents::Reach(const std::string& handle) {
  MutexLock lock(mutex_);
  events_.at(handle)->reached = true;
}

void FakeSharedDeviceEvents::Remake(const std::string& handle) {
  MutexLock lock(mutex_);
  std::shared_ptr<Event>& event = events_.at(handle);
  event->reached = true;
  event = std::make_shared<Event>();
}

void FakeSharedDeviceEvents::EndClient(const std::string& handle) {
  MutexLock lock(mutex_);
  events_.at(handle)->client_lives = false;
}

void FakeSharedDeviceEvents::Fail(const std::string& handle, const absl::Status& status) {
  MutexLock lock(mutex_);
  events_.at(handle)->status = status;
}

void FakeSharedDeviceEvents::OnAsked(const std::string& handle, std::function<void()> hook) {
  MutexLock lock(mutex_);
  events_.at(handle)->on_asked = std::move(hook);
}

void FakeSharedDeviceEvents::OnClosed(const std::string& handle, std::function<void()> hook) {
  MutexLock lock(mutex_);
  events_.at(handle)->on_closed = std::move(hook);
}

int FakeSharedDeviceEvents::opened() const {
  MutexLock lock(mutex_);
  return opened_;
}

int FakeSharedDeviceEvents::most_opened() const {
  MutexLock lock(mutex_);
  return most_opened_;
}

int FakeSharedDeviceEvents::opens() const {
  MutexLock lock(mutex_);
  return opens_;
}

int FakeSharedDeviceEvents::asked(const std::string& handle) const {
  MutexLock lock(mutex_);
  return events_.at(handle)->asked;
}

absl::StatusOr<std::unique_ptr<SharedDeviceEvent>> FakeSharedDeviceEvents::Open(int /*device*/,
                                                                                ConstBytes handle) {
  MutexLock lock(mutex_);
  const std::string name(reinterpret_cast<const char*>(handle.data()), handle.size());
  const auto found = events_.find(name);
  if (found == events_.end() || !found->second->client_lives) {
    return absl::InvalidArgumentError("event_handle: not one of a living process");
  }
  ++opens_;
  most_opened_ = std::max(most_opened_, ++opened_);
  return std::make_unique<Opened>(*this, found->second);
}

}  // namespace normd::testing
