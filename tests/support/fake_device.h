// A device in host memory that is as asynchronous as a real one: enqueued work runs only when
// somebody waits for it, so that memory reused too early shows as a wrong result. Faults are
// injected by counting calls.

#ifndef NORMD_TESTS_SUPPORT_FAKE_DEVICE_H_
#define NORMD_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/exec/device/device.h"

namespace normd {

enum class FakeCall {
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
inline constexpr std::size_t kFakeCallCount = 10;

// Thread-safe.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(std::string name, std::int64_t memory_bytes = std::int64_t{1} << 30);

  // The `nth` call (from 1) of that kind from now on returns `status`; with `sticky` the device is
  // unusable from then on and every later call returns it too.
  void FailCall(FakeCall call, int nth, absl::Status status, bool sticky = false);

  std::int64_t calls(FakeCall call) const;
  std::int64_t allocated_bytes() const;

  const std::string& name() const override { return name_; }
  std::string description() const override { return "host memory"; }
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream() override;
  absl::StatusOr<DeviceMemoryInfo> MemoryInfo() override;
  // Weights of a fused layer are float32 here and carry the precision that they were prepared for:
  // those of another one give a result of NaNs.
  LinearSizes SizesOf(const norm::LinearNormSpec& spec) const override;
  bool usable() const override;

  // For its streams.
  absl::Status Count(FakeCall call);

 private:
  struct State;

  const std::string name_;
  const std::int64_t memory_bytes_;
  // shared: memory that was given out returns to it, also after the device has gone.
  const std::shared_ptr<State> state_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_FAKE_DEVICE_H_
