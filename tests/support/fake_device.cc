#include "tests/support/fake_device.h"

#include <cstring>
#include <deque>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/reference.h"
#include "server/base/mutex.h"

namespace normd {
namespace {

constexpr std::align_val_t kAlignment{256};

class FakeStream final : public DeviceStream {
 public:
  explicit FakeStream(FakeDevice& device) : device_(device) {}
  ~FakeStream() override { RunUntil(work_added_); }

  absl::Status CopyIn(std::byte* device, const std::byte* host, std::size_t bytes) override {
    return Enqueue(FakeCall::kCopyIn, [=] { std::memcpy(device, host, bytes); });
  }

  absl::Status CopyOut(std::byte* host, const std::byte* device, std::size_t bytes) override {
    return Enqueue(FakeCall::kCopyOut, [=] { std::memcpy(host, device, bytes); });
  }

  absl::Status Normalize(const norm::NormSpec& spec, const norm::NormParams& params,
                         const norm::Segment* segments, std::size_t count) override {
    return Enqueue(FakeCall::kNormalize,
                   [spec, params, list = std::vector<norm::Segment>(segments, segments + count)] {
                     for (const norm::Segment& segment : list) Compute(spec, params, segment);
                   });
  }

  absl::StatusOr<Mark> AddMark() override {
    if (absl::Status status = device_.Count(FakeCall::kAddMark); !status.ok()) return status;
    marks_.push_back(work_added_);
    return static_cast<Mark>(marks_.size() - 1);
  }

  absl::Status WaitFor(Mark mark) override {
    RunUntil(marks_.at(static_cast<std::size_t>(mark)));
    return device_.Count(FakeCall::kWait);
  }

  Duration Between(Mark first, Mark second) override {
    return std::chrono::microseconds(marks_.at(static_cast<std::size_t>(second)) -
                                     marks_.at(static_cast<std::size_t>(first)));
  }

  void ClearMarks() override { marks_.clear(); }

  absl::Status Wait() override {
    RunUntil(work_added_);
    return device_.Count(FakeCall::kWait);
  }

 private:
  static void Compute(const norm::NormSpec& spec, const norm::NormParams& params,
                      const norm::Segment& segment) {
    const std::int64_t elements = segment.samples * segment.spatial * spec.channels;
    std::vector<double> y(static_cast<std::size_t>(elements));
    if (!norm::NormalizeReference(spec, params, segment, y.data()).ok()) std::abort();
    for (std::int64_t i = 0; i < elements; ++i) {
      norm::StoreElement(spec.dtype, segment.y, i, y[static_cast<std::size_t>(i)]);
    }
  }

  absl::Status Enqueue(FakeCall call, std::function<void()> work) {
    if (absl::Status status = device_.Count(call); !status.ok()) return status;
    work_.push_back(std::move(work));
    ++work_added_;
    return absl::OkStatus();
  }

  void RunUntil(std::int64_t count) {
    for (; work_done_ < count; ++work_done_) {
      work_.front()();
      work_.pop_front();
    }
  }

  FakeDevice& device_;
  std::deque<std::function<void()>> work_;
  std::int64_t work_added_ = 0;
  std::int64_t work_done_ = 0;
  std::vector<std::int64_t> marks_;
};

}  // namespace

struct FakeDevice::State {
  struct Fault {
    std::int64_t at = 0;  // 0: none.
    absl::Status status;
    bool sticky = false;
  };

  Mutex mutex;
  std::array<std::int64_t, kFakeCallCount> calls ABSL_GUARDED_BY(mutex){};
  std::array<Fault, kFakeCallCount> faults ABSL_GUARDED_BY(mutex);
  absl::Status broken ABSL_GUARDED_BY(mutex);
  std::atomic<std::int64_t> allocated_bytes{0};
};

FakeDevice::FakeDevice(std::string name, std::int64_t memory_bytes)
    : name_(std::move(name)), memory_bytes_(memory_bytes), state_(std::make_shared<State>()) {}

void FakeDevice::FailCall(FakeCall call, int nth, absl::Status status, bool sticky) {
  MutexLock lock(state_->mutex);
  const auto index = static_cast<std::size_t>(call);
  state_->faults[index] = {state_->calls[index] + nth, std::move(status), sticky};
}

std::int64_t FakeDevice::calls(FakeCall call) const {
  MutexLock lock(state_->mutex);
  return state_->calls[static_cast<std::size_t>(call)];
}

std::int64_t FakeDevice::allocated_bytes() const { return state_->allocated_bytes; }

absl::Status FakeDevice::Count(FakeCall call) {
  MutexLock lock(state_->mutex);
  const auto index = static_cast<std::size_t>(call);
  const std::int64_t now = ++state_->calls[index];
  if (!state_->broken.ok()) return state_->broken;
  const State::Fault& fault = state_->faults[index];
  if (fault.at != now) return absl::OkStatus();
  if (fault.sticky) state_->broken = fault.status;
  return fault.status;
}

absl::StatusOr<Buffer> FakeDevice::Allocate(MemoryKind kind, std::size_t bytes) {
  if (absl::Status status = Count(FakeCall::kAllocate); !status.ok()) return status;
  const auto size = static_cast<std::int64_t>(bytes);
  if (kind == MemoryKind::kDevice && allocated_bytes() + size > memory_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "device memory: wanted ", bytes, " bytes, free ", memory_bytes_ - allocated_bytes()));
  }
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  state_->allocated_bytes += size;
  return Buffer(data, bytes, [data, size, state = state_] {
    state->allocated_bytes -= size;
    ::operator delete(data, kAlignment);
  });
}

absl::StatusOr<std::unique_ptr<DeviceStream>> FakeDevice::CreateStream() {
  return std::make_unique<FakeStream>(*this);
}

absl::StatusOr<DeviceMemoryInfo> FakeDevice::MemoryInfo() {
  return DeviceMemoryInfo{memory_bytes_ - allocated_bytes(), memory_bytes_};
}

bool FakeDevice::usable() const {
  MutexLock lock(state_->mutex);
  return state_->broken.ok();
}

}  // namespace normd
