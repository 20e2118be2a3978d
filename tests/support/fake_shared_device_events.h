// Events that other processes share with fake devices: a test says when they are reached.

#ifndef NORMD_TESTS_SUPPORT_FAKE_SHARED_DEVICE_EVENTS_H_
#define NORMD_TESTS_SUPPORT_FAKE_SHARED_DEVICE_EVENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/shared_device_events.h"

namespace normd::testing {

// Thread-safe.
class FakeSharedDeviceEvents final : public SharedDeviceEvents {
 public:
  // The handle of a new event of a client, recorded and not reached.
  std::string Make();
  void Reach(const std::string& handle);
  // Its client destroys the event, which counts as reached for whoever has it open, and makes
  // another one of the same handle, recorded and not reached.
  void Remake(const std::string& handle);
  // From now on nobody opens it, and it is never reached.
  void EndClient(const std::string& handle);
  // With which the device answers when it is asked for the event.
  void Fail(const std::string& handle, const absl::Status& status);
  // Runs whenever the event is asked for, before it answers.
  void OnAsked(const std::string& handle, std::function<void()> hook);
  // Runs whenever the event is closed.
  void OnClosed(const std::string& handle, std::function<void()> hook);

  int opened() const;       // That the server has open now.
  int most_opened() const;  // At once, so far.
  int opens() const;        // Calls so far that succeeded.
  int asked(const std::string& handle) const;

  absl::StatusOr<std::unique_ptr<SharedDeviceEvent>> Open(int device, ConstBytes handle) override;

 private:
  class Opened;
  struct Event {
    bool reached = false;
    bool client_lives = true;
    absl::Status status;
    int asked = 0;
    std::function<void()> on_asked;
    std::function<void()> on_closed;
  };

  mutable Mutex mutex_;
  // By handle. shared: with whoever has the event open.
  std::map<std::string, std::shared_ptr<Event>> events_ ABSL_GUARDED_BY(mutex_);
  int opened_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_opened_ ABSL_GUARDED_BY(mutex_) = 0;
  int opens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SUPPORT_FAKE_SHARED_DEVICE_EVENTS_H_
