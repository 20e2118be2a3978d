// Faults for devices in tests: which call of which kind fails, and how.

#ifndef NORMD_TESTS_SUPPORT_CALL_FAULTS_H_
#define NORMD_TESTS_SUPPORT_CALL_FAULTS_H_

#include <array>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace normd {

enum class DeviceCall {
  kAllocate,
  kCopyIn,
  kNormalize,
  kPrepareLinear,
  kLinearNorm,
  kCopyOut,
  kAddMark,
  kAwait,
  kAddPoint,
  kWait
};
inline constexpr std::size_t kDeviceCallCount = 10;

// Thread-safe.
class CallFaults {
 public:
  // The `nth` call (from 1) of that kind from now on returns `status`; with `sticky` every later
  // call of any kind does too.
  void FailCall(DeviceCall call, int nth, absl::Status status, bool sticky = false) {
    MutexLock lock(mutex_);
    const auto index = static_cast<std::size_t>(call);
    faults_[index] = {calls_[index] + nth, std::move(status), sticky};
  }

  // Counts a call and returns its fault, if it has one.
  absl::Status Count(DeviceCall call) {
    MutexLock lock(mutex_);
    const auto index = static_cast<std::size_t>(call);
    const std::int64_t now = ++calls_[index];
    if (!broken_.ok()) return broken_;
    const Fault& fault = faults_[index];
    if (fault.at != now) return absl::OkStatus();
    if (fault.sticky) broken_ = fault.status;
    return fault.status;
  }

  std::int64_t calls(DeviceCall call) const {
    MutexLock lock(mutex_);
    return calls_[static_cast<std::size_t>(call)];
  }
  // False after a sticky fault.
  bool usable() const {
    MutexLock lock(mutex_);
    return broken_.ok();
  }

 private:
  struct Fault {
    std::int64_t at = 0;  // 0: none.
    absl::Status status;
    bool sticky = false;
  };

  mutable Mutex mutex_;
  std::array<std::int64_t, kDeviceCallCount> calls_ ABSL_GUARDED_BY(mutex_){};
  std::array<Fault, kDeviceCallCount> faults_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_CALL_FAULTS_H_
