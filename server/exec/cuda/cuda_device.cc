#include "server/exec/cuda/cuda_device.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <emmintrin.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear_norm.h"
#include "kernels/cuda/normalize.h"
#include "server/exec/kernel_status.h"

namespace normd {
namespace {

// After these the context is lost: every later call on the device returns the same error.
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContextIsDestroyed:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

// What a device and its streams share. The memory that it gave out does not need it.
struct Context {
  int index = 0;
  std::string name;
  norm::cuda::DeviceLimits limits;
  PFN_cuStreamWriteValue32_v11070 write_value = nullptr;
  // Relaxed: a lane that misses the change meets the error itself.
  std::atomic<bool> usable{true};

  absl::Status Check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return absl::OkStatus();
    static_cast<void>(cudaGetLastError());  // Clears one that is not sticky.
    if (IsSticky(error)) usable.store(false, std::memory_order_relaxed);
    const std::string text =
        absl::StrCat(call, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                              : absl::InternalError(text);
  }

  absl::Status Check(const norm::Status& status) {
    if (status.ok()) return absl::OkStatus();
    // A launch that was refused may be the first that hears of a lost context.
    if (IsSticky(cudaPeekAtLastError())) usable.store(false, std::memory_order_relaxed);
    static_cast<void>(cudaGetLastError());
    return FromKernel(status);
  }

  // The runtime's current device belongs to the thread; every entry sets it, which costs tens of
  // nanoseconds when it is set already.
  absl::Status Enter() { return Check(cudaSetDevice(index), "cudaSetDevice"); }
};

class CudaStream final : public DeviceStream {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceStream>> Create(std::shared_ptr<Context> context) {
    std::unique_ptr<CudaStream> stream(new CudaStream(std::move(context)));
    if (absl::Status status = stream->Initialize(); !status.ok()) return status;
    return stream;
  }

  ~CudaStream() override {
    static_cast<void>(cudaSetDevice(context_->index));
    if (stream_ != nullptr) {
      static_cast<void>(cudaStreamSynchronize(stream_));
      static_cast<void>(cudaStreamDestroy(stream_));
    }
    for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
    if (workspace_ != nullptr) static_cast<void>(cudaFree(workspace_));
    if (reached_ != nullptr) static_cast<void>(cudaFreeHost(reached_));
  }

  absl::Status CopyIn(std::byte* device, const std::byte* host, std::size_t bytes) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    return context_->Check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_),
                           "copy in");
  }

  absl::Status CopyOut(std::byte* host, const std::byte* device, std::size_t bytes) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    return context_->Check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_),
                           "copy out");
  }

  absl::Status Normalize(const norm::NormSpec& spec, const norm::NormParams& params,
                         const norm::Segment* segments, std::size_t count) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    absl::Status reserved =
        ReserveWorkspace(norm::cuda::WorkspaceBytes(spec, segments, count, context_->limits));
    if (!reserved.ok()) return reserved;
    norm::cuda::LaunchOptions options;
    options.stream = stream_;
    options.workspace = workspace_;
    options.workspace_bytes = workspace_bytes_;
    return context_->Check(
        norm::cuda::Normalize(spec, params, segments, count, context_->limits, options));
  }

  absl::Status PrepareLinear(const norm::LinearNormSpec& spec, const norm::LinearNormParams& params,
                             MutableBytes prepared) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    return context_->Check(norm::cuda::PrepareLinearWeights(
        spec, params, context_->limits, prepared.data(), prepared.size(), stream_));
  }

  absl::Status LinearNorm(const norm::LinearNormSpec& spec, ConstBytes prepared,
                          const norm::LinearNormSegment* segments, std::size_t count,
                          MutableBytes workspace) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    norm::cuda::LinearLaunchOptions options;
    options.stream = stream_;
    options.workspace = workspace.data();
    options.workspace_bytes = workspace.size();
    return context_->Check(
        norm::cuda::LinearNorm(spec, prepared.data(), segments, count, context_->limits, options));
  }

  absl::StatusOr<Mark> AddMark() override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    if (used_events_ == events_.size()) {
      cudaEvent_t event = nullptr;
      absl::Status status = context_->Check(cudaEventCreate(&event), "event");
      if (!status.ok()) return status;
      events_.push_back(event);
    }
    const absl::Status status =
        context_->Check(cudaEventRecord(events_[used_events_], stream_), "cudaEventRecord");
    if (!status.ok()) return status;
    return static_cast<Mark>(used_events_++);
  }

  absl::Status Await(DeviceStream& other, Mark mark) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    // The streams of a device are all of this class.
    cudaEvent_t event = static_cast<CudaStream&>(other).events_[static_cast<std::size_t>(mark)];
    return context_->Check(cudaStreamWaitEvent(stream_, event, 0), "cudaStreamWaitEvent");
  }

  Duration Between(Mark first, Mark second) override {
    float milliseconds = 0;
    static_cast<void>(context_->Check(
        cudaEventElapsedTime(&milliseconds, events_[static_cast<std::size_t>(first)],
                             events_[static_cast<std::size_t>(second)]),
        "cudaEventElapsedTime"));
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<float, std::milli>(milliseconds));
  }

  void ClearMarks() override { used_events_ = 0; }

  // A word of host memory that the device writes when it comes there: reading it takes no lock of
  // the driver's, which the threads that enqueue need.
  absl::StatusOr<Point> AddPoint() override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    const Point point = last_point_ + 1;
    const CUresult result = context_->write_value(stream_, reinterpret_cast<CUdeviceptr>(reached_),
                                                  point, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (result != CUDA_SUCCESS) {
      // The runtime knows its name, and whether the context is lost.
      const cudaError_t state = cudaStreamQuery(stream_);
      return state != cudaSuccess && state != cudaErrorNotReady
                 ? context_->Check(state, "point")
                 : absl::InternalError(
                       absl::StrCat("point: driver error ", static_cast<int>(result)));
    }
    last_point_ = point;
    return point;
  }

  absl::Status WaitUntil(Point point) override {
    const auto begin = std::chrono::steady_clock::now();
    auto ask = begin + kAskForErrors;
    while (!Reached(point)) {
      const auto now = std::chrono::steady_clock::now();
      if (now < begin + kSpin) {
        _mm_pause();
        continue;
      }
      std::this_thread::sleep_for(kNap);
      if (now < ask) continue;
      // What has failed is never reached.
      if (absl::Status status = context_->Enter(); !status.ok()) return status;
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state != cudaErrorNotReady && !Reached(point)) {
        return state == cudaSuccess
                   ? absl::InternalError("point: not reached by a stream that is done")
                   : context_->Check(state, "batch");
      }
      ask = now + kAskForErrors;
    }
    return absl::OkStatus();
  }

  absl::Status Wait() override {
    const absl::StatusOr<Point> point = AddPoint();
    if (point.ok()) return WaitUntil(*point);
    static_cast<void>(cudaStreamSynchronize(stream_));
    return point.status();
  }

 private:
  // A small batch is done before a sleeping thread could wake.
  static constexpr std::chrono::microseconds kSpin{50};
  static constexpr std::chrono::microseconds kNap{10};
  static constexpr std::chrono::milliseconds kAskForErrors{2};
  // Enough for contiguous rows in pieces of 1 GiB.
  static constexpr std::size_t kUsualWorkspaceBytes =
      norm::cuda::kWorkspaceBase + (std::size_t{4} << 20);

  explicit CudaStream(std::shared_ptr<Context> context) : context_(std::move(context)) {}

  absl::Status Initialize() {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    absl::Status status = context_->Check(
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    if (!status.ok()) return status;
    void* word = nullptr;
    status = context_->Check(cudaHostAlloc(&word, sizeof(Point), cudaHostAllocPortable), "point");
    if (!status.ok()) return status;
    reached_ = ::new (word) Point(0);
    return ReserveWorkspace(kUsualWorkspaceBytes);
  }

  bool Reached(Point point) const {
    const Point now = std::atomic_ref<Point>(*reached_).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(now - point) >= 0;  // Also when the numbers wrap.
  }

  // Grows the workspace: at start, and for the rare batch that needs more than usual, such as
  // interleaved rows of many channels and few positions. No other allocation is ever made on the
  // way of a request.
  absl::Status ReserveWorkspace(std::size_t wanted) {
    if (wanted <= workspace_bytes_) return absl::OkStatus();
    if (workspace_ != nullptr) {
      absl::Status idle = context_->Check(cudaStreamSynchronize(stream_), "workspace");
      if (!idle.ok()) return idle;
      static_cast<void>(cudaFree(std::exchange(workspace_, nullptr)));
      workspace_bytes_ = 0;
    }
    absl::Status status = context_->Check(cudaMalloc(&workspace_, wanted), "workspace");
    if (!status.ok()) return status;
    workspace_bytes_ = wanted;
    const norm::Status ready = norm::cuda::InitWorkspace(workspace_, workspace_bytes_, stream_);
    if (!ready.ok()) return FromKernel(ready);
    return context_->Check(cudaStreamSynchronize(stream_), "workspace");
  }

  const std::shared_ptr<Context> context_;  // shared with the device and its other streams
  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  Point* reached_ = nullptr;  // Pinned; the last point that the device has come to.
  Point last_point_ = 0;
  std::vector<cudaEvent_t> events_;
  std::size_t used_events_ = 0;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Context> context, std::string description)
      : context_(std::move(context)), description_(std::move(description)) {}

  const std::string& name() const override { return context_->name; }
  std::string description() const override { return description_; }

  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes) override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    void* data = nullptr;
    const bool pinned = kind == MemoryKind::kPinned;
    absl::Status status = context_->Check(
        pinned ? cudaHostAlloc(&data, bytes, cudaHostAllocPortable) : cudaMalloc(&data, bytes),
        pinned ? "pinned host memory" : "device memory");
    if (!status.ok()) {
      const absl::StatusOr<DeviceMemoryInfo> info = MemoryInfo();
      return absl::Status(
          status.code(),
          absl::StrCat(status.message(), ": wanted ", bytes, " bytes",
                       info.ok() && !pinned ? absl::StrCat(", free ", info->free_bytes) : ""));
    }
    return Buffer(static_cast<std::byte*>(data), bytes, [data, pinned, index = context_->index] {
      static_cast<void>(cudaSetDevice(index));
      static_cast<void>(pinned ? cudaFreeHost(data) : cudaFree(data));
    });
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream() override {
    return CudaStream::Create(context_);
  }

  absl::StatusOr<DeviceMemoryInfo> MemoryInfo() override {
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    std::size_t free = 0;
    std::size_t total = 0;
    if (absl::Status status = context_->Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
        !status.ok()) {
      return status;
    }
    return DeviceMemoryInfo{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
  }

  LinearSizes SizesOf(const norm::LinearNormSpec& spec) const override {
    LinearSizes sizes;
    sizes.prepared = norm::cuda::LinearWeightBytes(spec, context_->limits);
    for (const norm::DType dtype :
         {norm::DType::kFloat32, norm::DType::kFloat16, norm::DType::kBFloat16}) {
      norm::LinearNormSpec typed = spec;
      typed.dtype = dtype;
      sizes.workspace =
          std::max(sizes.workspace, norm::cuda::LinearWorkspaceBytes(
                                        typed, norm::cuda::kLinearChunkSamples, context_->limits));
    }
    return sizes;
  }

  bool usable() const override { return context_->usable.load(std::memory_order_relaxed); }

  void BeginRange(const char* name) override { nvtxRangePushA(name); }
  void EndRange() override { nvtxRangePop(); }

 private:
  const std::shared_ptr<Context> context_;  // shared with its streams
  const std::string description_;
};

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index) {
  auto context = std::make_shared<Context>();
  context->index = index;
  context->name = absl::StrCat("cuda:", index);
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return absl::FailedPreconditionError(
        absl::StrCat("device: ", context->name, " is not here; ", CudaDeviceCount(), " found"));
  }
  if (absl::Status status = context->Enter(); !status.ok()) return status;
  const norm::Status limits = norm::cuda::QueryDeviceLimits(index, &context->limits);
  if (!limits.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(context->name, ": ", limits.message()));
  }
  // The runtime has no name for it, and the program is not linked with the driver.
  void* write_value = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &write_value, 11070,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return absl::FailedPreconditionError(
        absl::StrCat(context->name, ": the driver has no cuStreamWriteValue32"));
  }
  context->write_value = reinterpret_cast<PFN_cuStreamWriteValue32_v11070>(write_value);
  std::string description =
      absl::StrCat(properties.name, ", ", properties.totalGlobalMem >> 20, " MiB");
  return std::make_unique<CudaDevice>(std::move(context), std::move(description));
}

std::string CudaRuntimeVersion() {
  return absl::StrCat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
}

}  // namespace normd
