// A device in host memory that is as asynchronous as a real one: enqueued work runs only when
// somebody waits for it, so that memory reused too early shows as a wrong result. Faults are
// injected by counting calls.

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
  // From now on its streams take launches of any size, as tensors in memory that clients share are;
  // until then one that is too large for its stream fails.
  void LetLaunchesGrow() { launches_may_grow_ = true; }
  // From now on `watch` hears of the host's memory in each copy, when it is made, on the lane's
  // thread, but for what the device has allocated as pinned. Before anything is allocated.
  using CopyWatch = std::function<void(const std::byte* host, std::size_t bytes)>;
  void WatchCopies(CopyWatch watch) { copy_watch_ = std::move(watch); }
  bool launches_may_grow() const { return launches_may_grow_; }

  const std::string& name() const override { return name_; }
  // What follows the name's colon.
  int ordinal() const override { return ordinal_; }
  std::string description() const override { return "host memory"; }
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      std::size_t largest_launch_bytes) override;
  absl::StatusOr<DeviceMemoryInfo> MemoryInfo() override;
  // Weights of a fused layer are float32 here and carry the precision that they were prepared for:
  // those of another one give a result of NaNs.
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
  // With a watch: where each begins, and its size. What has gone stays, until it is allocated anew.
  std::map<const std::byte*, std::size_t> pinned_ ABSL_GUARDED_BY(mutex_);
  // shared: memory that was given out returns to it, also after the device has gone.
  const std::shared_ptr<std::atomic<std::int64_t>> allocated_bytes_;
};

// Enqueues what stands for a kernel on a stream of a FakeDevice; counts as kNormalize.
absl::Status EnqueueOnFakeStream(DeviceStream& stream, std::function<void()> work);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_FAKE_DEVICE_H_
