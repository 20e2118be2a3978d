// A device whose calls fail on a test's request; another device does the others. Faults thus meet
// work that is really in progress.

#ifndef NORMD_TESTS_SUPPORT_FAULTY_DEVICE_H_
#define NORMD_TESTS_SUPPORT_FAULTY_DEVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "server/exec/device/device.h"
#include "tests/support/call_faults.h"

namespace normd {

class FaultyStream final : public DeviceStream {
 public:
  FaultyStream(std::unique_ptr<DeviceStream> inner, CallFaults& faults)
      : inner_(std::move(inner)), faults_(faults) {}

  absl::Status CopyIn(std::byte* device, const std::byte* host, std::size_t bytes) override {
    absl::Status fault = faults_.Count(DeviceCall::kCopyIn);
    return fault.ok() ? inner_->CopyIn(device, host, bytes) : fault;
  }
  absl::Status CopyOut(std::byte* host, const std::byte* device, std::size_t bytes) override {
    absl::Status fault = faults_.Count(DeviceCall::kCopyOut);
    return fault.ok() ? inner_->CopyOut(host, device, bytes) : fault;
  }
  absl::Status Normalize(const norm::NormSpec& spec, const norm::NormParams& params,
                         const norm::Segment* segments, std::size_t count) override {
    absl::Status fault = faults_.Count(DeviceCall::kNormalize);
    return fault.ok() ? inner_->Normalize(spec, params, segments, count) : fault;
  }
  absl::Status PrepareLinear(const norm::LinearNormSpec& spec, const norm::LinearNormParams& params,
                             MutableBytes prepared) override {
    absl::Status fault = faults_.Count(DeviceCall::kPrepareLinear);
    return fault.ok() ? inner_->PrepareLinear(spec, params, prepared) : fault;
  }
  absl::Status LinearNorm(const norm::LinearNormSpec& spec, ConstBytes prepared,
                          const norm::LinearNormSegment* segments, std::size_t count,
                          MutableBytes workspace) override {
    absl::Status fault = faults_.Count(DeviceCall::kLinearNorm);
    return fault.ok() ? inner_->LinearNorm(spec, prepared, segments, count, workspace) : fault;
  }

  absl::StatusOr<Mark> AddMark() override {
    absl::Status fault = faults_.Count(DeviceCall::kAddMark);
    if (!fault.ok()) return fault;
    return inner_->AddMark();
  }
  absl::Status Await(DeviceStream& other, Mark mark) override {
    absl::Status fault = faults_.Count(DeviceCall::kAwait);
    return fault.ok() ? inner_->Await(*static_cast<FaultyStream&>(other).inner_, mark) : fault;
  }
  Duration Between(Mark first, Mark second) override { return inner_->Between(first, second); }
  void ClearMarks() override { inner_->ClearMarks(); }

  absl::StatusOr<Point> AddPoint() override {
    absl::Status fault = faults_.Count(DeviceCall::kAddPoint);
    if (!fault.ok()) return fault;
    return inner_->AddPoint();
  }
  bool IsReached(Point point) override { return inner_->IsReached(point); }
  absl::Status WaitUntil(Point point) override { return inner_->WaitUntil(point); }
  // Like a real one, it waits whatever it returns.
  absl::Status Wait() override {
    absl::Status fault = faults_.Count(DeviceCall::kWait);
    absl::Status status = inner_->Wait();
    return fault.ok() ? status : fault;
  }

 private:
  const std::unique_ptr<DeviceStream> inner_;
  CallFaults& faults_;
};

// Thread-safe.
class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  // See CallFaults; a sticky fault leaves the device unusable.
  void FailCall(DeviceCall call, int nth, absl::Status status, bool sticky = false) {
    faults_.FailCall(call, nth, std::move(status), sticky);
  }

  const std::string& name() const override { return inner_->name(); }
  int ordinal() const override { return inner_->ordinal(); }
  std::string description() const override { return inner_->description(); }
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes) override {
    absl::Status fault = faults_.Count(DeviceCall::kAllocate);
    if (!fault.ok()) return fault;
    return inner_->Allocate(kind, bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      std::size_t largest_launch_bytes) override {
    absl::StatusOr<std::unique_ptr<DeviceStream>> stream =
        inner_->CreateStream(largest_launch_bytes);
    if (!stream.ok()) return stream.status();
    return std::make_unique<FaultyStream>(*std::move(stream), faults_);
  }
  absl::StatusOr<DeviceMemoryInfo> MemoryInfo() override { return inner_->MemoryInfo(); }
  LinearSizes SizesOf(const norm::LinearNormSpec& spec) const override {
    return inner_->SizesOf(spec);
  }
  bool usable() const override { return faults_.usable() && inner_->usable(); }

 private:
  const std::unique_ptr<Device> inner_;
  CallFaults faults_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_FAULTY_DEVICE_H_
