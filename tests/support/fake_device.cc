#include "tests/support/fake_device.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/reference.h"
#include "kernels/segment_tensors.h"

namespace normd {
namespace {

constexpr std::align_val_t kAlignment{256};

constexpr std::size_t kWorkspaceBytes = 300;

// The prepared form: the precision, the weights, the bias or zeros; all as floats.
class FakeWeights {
 public:
  static std::size_t Bytes(const norm::LinearNormSpec& spec) {
    return sizeof(float) * static_cast<std::size_t>(1 + (spec.in_features + 1) * spec.out_features);
  }

  FakeWeights(const norm::LinearNormSpec& spec, MutableBytes memory)
      : count_(spec.in_features * spec.out_features),
        features_(spec.out_features),
        tag_(1 + static_cast<float>(spec.precision)),
        data_(reinterpret_cast<float*>(memory.data())),
        fit_(memory.size() == Bytes(spec)) {}

  void Prepare(const norm::LinearNormParams& params) const {
    data_[0] = tag_;
    Convert(params.weight, count_, data_ + 1);
    Convert(params.bias, features_, data_ + 1 + count_);
  }
  bool Fit() const { return fit_ && data_[0] == tag_; }
  norm::LinearNormParams params() const {
    norm::LinearNormParams params;
    params.weight.data = data_ + 1;
    params.bias.data = data_ + 1 + count_;
    return params;
  }

 private:
  static void Convert(const norm::ParamVector& from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = from.data == nullptr
                  ? 0
                  : static_cast<float>(norm::LoadElement(from.dtype, from.data, i));
    }
  }

  const std::int64_t count_;
  const std::int64_t features_;
  const float tag_;
  float* const data_;
  const bool fit_;
};

class FakeStream final : public DeviceStream {
 public:
  FakeStream(FakeDevice& device, std::size_t largest_launch_bytes)
      : device_(device), largest_launch_bytes_(largest_launch_bytes) {}
  ~FakeStream() override { RunUntil(work_added_); }

  absl::Status CopyIn(std::byte* device, const std::byte* host, std::size_t bytes) override {
    return Enqueue(DeviceCall::kCopyIn, [=, this] {
      device_.Copied(host, bytes);
      std::memcpy(device, host, bytes);
    });
  }

  absl::Status CopyOut(std::byte* host, const std::byte* device, std::size_t bytes) override {
    return Enqueue(DeviceCall::kCopyOut, [=, this] {
      device_.Copied(host, bytes);
      std::memcpy(host, device, bytes);
    });
  }

  absl::Status Normalize(const norm::NormSpec& spec, const norm::NormParams& params,
                         const norm::Segment* segments, std::size_t count) override {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bytes += static_cast<std::size_t>(segments[i].samples * segments[i].spatial * spec.channels) *
               norm::SizeOf(spec.dtype);
    }
    if (bytes > largest_launch_bytes_ && !device_.launches_may_grow()) {
      return absl::InternalError(
          absl::StrCat("launch: ", bytes, " bytes on a stream for ", largest_launch_bytes_));
    }
    return Enqueue(DeviceCall::kNormalize,
                   [spec, params, list = std::vector<norm::Segment>(segments, segments + count)] {
                     for (const norm::Segment& segment : list) Compute(spec, params, segment);
                   });
  }

  absl::Status PrepareLinear(const norm::LinearNormSpec& spec, const norm::LinearNormParams& params,
                             MutableBytes prepared) override {
    return Enqueue(DeviceCall::kPrepareLinear,
                   [spec, params, prepared] { FakeWeights(spec, prepared).Prepare(params); });
  }

  absl::Status LinearNorm(const norm::LinearNormSpec& spec, ConstBytes prepared,
                          const norm::LinearNormSegment* segments, std::size_t count,
                          MutableBytes workspace) override {
    if (workspace.size() < kWorkspaceBytes) return absl::InternalError("workspace: too small");
    return Enqueue(DeviceCall::kLinearNorm,
                   [spec, prepared, workspace,
                    list = std::vector<norm::LinearNormSegment>(segments, segments + count)] {
                     std::memset(workspace.data(), 0xa5, workspace.size());
                     for (const norm::LinearNormSegment& segment : list)
                       Compute(spec, prepared, segment);
                   });
  }

  absl::Status Launch(std::function<void()> work) {
    return Enqueue(DeviceCall::kNormalize, std::move(work));
  }

  absl::StatusOr<Mark> AddMark() override {
    if (absl::Status status = device_.Count(DeviceCall::kAddMark); !status.ok()) return status;
    marks_.push_back(work_added_);
    return static_cast<Mark>(marks_.size() - 1);
  }

  absl::StatusOr<Point> AddPoint() override {
    if (absl::Status status = device_.Count(DeviceCall::kAddPoint); !status.ok()) return status;
    return static_cast<Point>(work_added_);
  }

  bool IsReached(Point point) override { return work_done_ >= point; }
  absl::Status WaitUntil(Point point) override {
    RunUntil(point);
    return device_.Count(DeviceCall::kWait);
  }

  absl::Status Await(DeviceStream& other, Mark mark) override {
    auto& stream = static_cast<FakeStream&>(other);
    const std::int64_t work = stream.marks_.at(static_cast<std::size_t>(mark));
    return Enqueue(DeviceCall::kAwait, [&stream, work] { stream.RunUntil(work); });
  }

  Duration Between(Mark first, Mark second) override {
    return std::chrono::microseconds(marks_.at(static_cast<std::size_t>(second)) -
                                     marks_.at(static_cast<std::size_t>(first)));
  }

  void ClearMarks() override { marks_.clear(); }

  absl::Status Wait() override {
    RunUntil(work_added_);
    absl::Status status = device_.Count(DeviceCall::kAddPoint);
    return status.ok() ? device_.Count(DeviceCall::kWait) : status;
  }

 private:
  static void Compute(const norm::NormSpec& spec, const norm::NormParams& params,
                      const norm::Segment& segment) {
    const std::int64_t elements = segment.samples * segment.spatial * spec.channels;
    std::vector<double> y(static_cast<std::size_t>(elements));
    const std::int64_t rows = segment.samples * norm::RowsOfSample(spec, segment.spatial);
    std::vector<double> mean(static_cast<std::size_t>(rows));
    std::vector<double> rstd(static_cast<std::size_t>(rows));
    const norm::ReferenceOutputs out{y.data(), segment.mean_out == nullptr ? nullptr : mean.data(),
                                     segment.rstd_out == nullptr ? nullptr : rstd.data()};
    if (!norm::NormalizeReference(spec, params, segment, out).ok()) std::abort();
    const norm::DType statistics = norm::TypeOf(spec, norm::SegmentOutput::kMean);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto r = static_cast<std::size_t>(row);
      if (out.mean != nullptr) norm::StoreElement(statistics, segment.mean_out, row, mean[r]);
      if (out.rstd != nullptr) norm::StoreElement(statistics, segment.rstd_out, row, rstd[r]);
    }
    if (spec.quantization != norm::Quantization::kNone) Quantize(spec, segment, y);
    const norm::DType of_y = norm::TypeOf(spec, norm::SegmentOutput::kY);
    for (std::int64_t i = 0; i < elements; ++i) {
      // Both outputs may replace an input.
      const double sum = norm::NormalizedElement(spec, params, segment, i);
      if (spec.residual_out) norm::StoreElement(spec.dtype, segment.residual_out, i, sum);
      norm::StoreElement(of_y, segment.y, i, y[static_cast<std::size_t>(i)]);
    }
  }

  // Divides the elements by their scales, and writes these.
  static void Quantize(const norm::NormSpec& spec, const norm::Segment& segment,
                       std::vector<double>& y) {
    if (spec.quantization_scale == norm::QuantizationScale::kStatic) {
      for (double& value : y) value /= spec.output_scale;
      return;
    }
    const std::vector<double> scales = norm::ReferenceScales(spec, segment, y.data());
    norm::DivideByScales(spec, segment, scales, y.data());
    for (std::size_t i = 0; i < scales.size(); ++i) {
      segment.scale_out[i] = static_cast<float>(scales[i]);
    }
  }

  static void Compute(const norm::LinearNormSpec& spec, ConstBytes prepared,
                      const norm::LinearNormSegment& segment) {
    const std::int64_t elements = segment.samples * spec.out_features;
    std::vector<double> out(static_cast<std::size_t>(elements),
                            std::numeric_limits<double>::quiet_NaN());
    const FakeWeights weights(
        spec, MutableBytes(const_cast<std::byte*>(prepared.data()), prepared.size()));
    if (weights.Fit() &&
        !norm::LinearNormReference(spec, weights.params(), segment, out.data()).ok()) {
      std::abort();
    }
    for (std::int64_t i = 0; i < elements; ++i) {
      norm::StoreElement(spec.dtype, segment.out, i, out[static_cast<std::size_t>(i)]);
    }
  }

  absl::Status Enqueue(DeviceCall call, std::function<void()> work) {
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
  const std::size_t largest_launch_bytes_;
  std::deque<std::function<void()>> work_;
  std::int64_t work_added_ = 0;
  std::int64_t work_done_ = 0;
  std::vector<std::int64_t> marks_;
};

}  // namespace

FakeDevice::FakeDevice(std::string name, std::int64_t memory_bytes)
    : name_(std::move(name)),
      ordinal_(std::atoi(name_.c_str() + name_.find(':') + 1)),
      memory_bytes_(memory_bytes),
      allocated_bytes_(std::make_shared<std::atomic<std::int64_t>>(0)) {}

std::int64_t FakeDevice::allocated_bytes() const { return *allocated_bytes_; }

absl::StatusOr<Buffer> FakeDevice::Allocate(MemoryKind kind, std::size_t bytes) {
  if (absl::Status status = Count(DeviceCall::kAllocate); !status.ok()) return status;
  const auto size = static_cast<std::int64_t>(bytes);
  if (kind == MemoryKind::kDevice && allocated_bytes() + size > memory_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "device memory: wanted ", bytes, " bytes, free ", memory_bytes_ - allocated_bytes()));
  }
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  *allocated_bytes_ += size;
  if (kind == MemoryKind::kPinned && copy_watch_) {
    MutexLock lock(mutex_);
    pinned_[data] = bytes;
  }
  return Buffer(data, bytes, [data, size, allocated = allocated_bytes_] {
    *allocated -= size;
    ::operator delete(data, kAlignment);
  });
}

void FakeDevice::Copied(const std::byte* host, std::size_t bytes) const {
  if (!copy_watch_) return;
  {
    MutexLock lock(mutex_);
    auto block = pinned_.upper_bound(host);
    if (block != pinned_.begin() && host + bytes <= (--block)->first + block->second) return;
  }
  copy_watch_(host, bytes);
}

absl::StatusOr<std::unique_ptr<DeviceStream>> FakeDevice::CreateStream(
    std::size_t largest_launch_bytes) {
  return std::make_unique<FakeStream>(*this, largest_launch_bytes);
}

absl::StatusOr<DeviceMemoryInfo> FakeDevice::MemoryInfo() {
  return DeviceMemoryInfo{memory_bytes_ - allocated_bytes(), memory_bytes_};
}

absl::Status EnqueueOnFakeStream(DeviceStream& stream, std::function<void()> work) {
  return static_cast<FakeStream&>(stream).Launch(std::move(work));
}

LinearSizes FakeDevice::SizesOf(const norm::LinearNormSpec& spec) const {
  return {FakeWeights::Bytes(spec), kWorkspaceBytes};
}

}  // namespace normd
