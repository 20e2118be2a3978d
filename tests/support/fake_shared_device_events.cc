#include "tests/support/fake_shared_device_events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd::testing {

class FakeSharedDeviceEvents::Opened final : public SharedDeviceEvent {
 public:
  Opened(FakeSharedDeviceEvents& events, std::string handle)
      : events_(events), handle_(std::move(handle)) {}
  ~Opened() override {
    MutexLock lock(events_.mutex_);
    --events_.opened_;
  }

  absl::StatusOr<bool> Reached() override {
    std::function<void()> hook;
    {
      MutexLock lock(events_.mutex_);
      Event& event = events_.events_.at(handle_);
      ++event.asked;
      hook = event.hook;
    }
    if (hook) hook();
    MutexLock lock(events_.mutex_);
    const Event& event = events_.events_.at(handle_);
    if (!event.status.ok()) return event.status;
    return event.reached;
  }

 private:
  FakeSharedDeviceEvents& events_;
  const std::string handle_;
};

std::string FakeSharedDeviceEvents::Make() {
  MutexLock lock(mutex_);
  std::string handle = absl::StrCat("event ", events_.size());
  // Of any bytes, such as are no text.
  handle.resize(kEventHandleBytes, '\xff');
  events_.emplace(handle, Event());
  return handle;
}

void FakeSharedDeviceEvents::Reach(const std::string& handle) {
  MutexLock lock(mutex_);
  events_.at(handle).reached = true;
}

void FakeSharedDeviceEvents::EndClient(const std::string& handle) {
  MutexLock lock(mutex_);
  events_.at(handle).client_lives = false;
}

void FakeSharedDeviceEvents::Fail(const std::string& handle, const absl::Status& status) {
  MutexLock lock(mutex_);
  events_.at(handle).status = status;
}

void FakeSharedDeviceEvents::OnAsked(const std::string& handle, std::function<void()> hook) {
  MutexLock lock(mutex_);
  events_.at(handle).hook = std::move(hook);
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
  return events_.at(handle).asked;
}

absl::StatusOr<std::unique_ptr<SharedDeviceEvent>> FakeSharedDeviceEvents::Open(int /*device*/,
                                                                                ConstBytes handle) {
  MutexLock lock(mutex_);
  std::string name(reinterpret_cast<const char*>(handle.data()), handle.size());
  const auto found = events_.find(name);
  if (found == events_.end() || !found->second.client_lives) {
    return absl::InvalidArgumentError("event_handle: not one of a living process");
  }
  ++opens_;
  most_opened_ = std::max(most_opened_, ++opened_);
  return std::make_unique<Opened>(*this, std::move(name));
}

}  // namespace normd::testing
