// A device in host memory that is as asynchronous as a real one: enqueued work runs only when it is
// awaited, so that memory reused too early shows as a wrong result. Faults are injected by counting
// calls.

#ifndef NORMD_TESTS_SUPPORT_FAKE_DEVICE_H_
#define NORMD_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/exec/device/device.h"
#include "tests/support/call_faults.h"

namespace normd {

// Thread-safe.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(std::string name, std::int64_t memory_bytes = std::int64_t{1} << 30);

  // See CallFaults; a sticky fault leaves the device unusable.
  void FailCall(DeviceCall call, int nth, absl::Status status, bool sticky = false) {
    faults_.FailCall(call, nth, std::move(status), sticky);
  }
  std::int64_t calls(DeviceCall call) const { return faults_.calls(call); }
  std::int64_t allocated_bytes() const;
  // From now on its streams take launches of any size, as for tensors in clients' shared memory;
  // until then a launch that is too large for its stream fails.
  void LetLaunchesGrow() { launches_may_grow_ = true; }
  // From now on `watch` gets the host memory of each copy, when it is made, on the lane's thread,
  // except for memory that the device has allocated as pinned. Call it before anything is
  // allocated.
  using CopyWatch = std::function<void(const std::byte* host, std::size_t bytes)>;
  void WatchCopies(CopyWatch watch) { copy_watch_ = std::move(watch); }
  bool launches_may_grow() const { return launches_may_grow_; }

  const std::string& name() const override { return name_; }
  // The number after the name's colon.
  int ordinal() const override { return ordinal_; }
  std::string description() const override { return "host memory"; }
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      std::size_t largest_launch_bytes) override;
  absl::StatusOr<DeviceMemoryInfo> MemoryInfo() override;
  // Weights of a fused layer are float32 here and record the precision for which they were
  // prepared: with another one the result is NaN.
  LinearSizes SizesOf(const norm::LinearNormSpec& spec) const override;
  bool usable() const override { return faults_.usable(); }

  // For its streams.
  absl::Status Count(DeviceCall call) { return faults_.Count(call); }
  void Copied(const std::byte* host, std::size_t bytes) const;

 private:
  const std::string name_;
  const int ordinal_;
  const std::int64_t memory_bytes_;
  CallFaults faults_;
  std::atomic<bool> launches_may_grow_{false};
  CopyWatch copy_watch_;
  mutable Mutex mutex_;
  // With a watch: the address and size of each. Freed ones stay until their memory is allocated
  // again.
  std::map<const std::byte*, std::size_t> pinned_ ABSL_GUARDED_BY(mutex_);
  // shared: allocated memory returns to it, also after the device is gone.
  const std::shared_ptr<std::atomic<std::int64_t>> allocated_bytes_;
};

// Enqueues a stand-in for a kernel on a stream of a FakeDevice; counts as kNormalize.
absl::Status EnqueueOnFakeStream(DeviceStream& stream, std::function<void()> work);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_FAKE_DEVICE_H_
