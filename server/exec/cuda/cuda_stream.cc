#include "server/exec/cuda/cuda_stream.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <emmintrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear_norm.h"
#include "kernels/cuda/normalize.h"

namespace normd {
namespace {

// The largest result of norm::cuda::WorkspaceBytes.
std::size_t WorkspaceFor(std::size_t launch_bytes) {
  return norm::cuda::kWorkspaceBase + launch_bytes / 8;
}

class CudaStream final : public DeviceStream {
 public:
  explicit CudaStream(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~CudaStream() override {
    static_cast<void>(cudaSetDevice(context_->index()));
    if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_.get()));
  }
  absl::Status Initialize(CudaMemory& memory, std::size_t largest_launch_bytes);

  absl::Status CopyIn(std::byte* device, const std::byte* host, std::size_t bytes) override;
  absl::Status CopyOut(std::byte* host, const std::byte* device, std::size_t bytes) override;
  absl::Status Normalize(const norm::NormSpec& spec, const norm::NormParams& params,
                         const norm::Segment* segments, std::size_t count) override;
  absl::Status PrepareLinear(const norm::LinearNormSpec& spec, const norm::LinearNormParams& params,
                             MutableBytes prepared) override;
  absl::Status LinearNorm(const norm::LinearNormSpec& spec, ConstBytes prepared,
                          const norm::LinearNormSegment* segments, std::size_t count,
                          MutableBytes workspace) override;

  absl::StatusOr<Mark> AddMark() override;
  absl::Status Await(DeviceStream& other, Mark mark) override;
  Duration Between(Mark first, Mark second) override;
  void ClearMarks() override { used_events_ = 0; }

  absl::StatusOr<Point> AddPoint() override;
  bool IsReached(Point point) override {
    const Point now = std::atomic_ref<Point>(*reached_).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(now - point) >= 0;  // Also correct when the numbers wrap.
  }
  absl::Status WaitUntil(Point point) override;
  absl::Status Wait() override;

 private:
  // A small batch is done before a sleeping thread could wake.
  static constexpr std::chrono::microseconds kSpin{50};
  static constexpr std::chrono::microseconds kNap{10};
  static constexpr std::chrono::milliseconds kAskForErrors{2};

  absl::Status TakeWorkspace(std::size_t bytes);

  const std::shared_ptr<CudaContext> context_;  // shared with the device and its other streams
  CudaMemory* memory_ = nullptr;                // The device's.
  Buffer workspace_;
  Buffer word_;               // Pinned; `reached_` points to it.
  Point* reached_ = nullptr;  // The last point that the device has reached.
  Point last_point_ = 0;
  std::vector<UniqueEvent> events_;
  std::size_t used_events_ = 0;
  UniqueStream stream_;  // Destroyed first.
};

absl::Status CudaStream::Initialize(CudaMemory& memory, std::size_t largest_launch_bytes) {
  absl::StatusOr<UniqueStream> stream = context_->CreateStream();
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  absl::StatusOr<Buffer> word = memory.AllocatePinned(sizeof(Point));
  if (!word.ok()) return word.status();
  word_ = *std::move(word);
  reached_ = ::new (word_.data()) Point(0);
  memory_ = &memory;
  if (largest_launch_bytes == 0) return absl::OkStatus();
  return TakeWorkspace(WorkspaceFor(largest_launch_bytes));
}

// No enqueued work uses a workspace that this replaces.
absl::Status CudaStream::TakeWorkspace(std::size_t bytes) {
  absl::StatusOr<Buffer> workspace = memory_->AllocateDevice(bytes);
  if (!workspace.ok()) return workspace.status();
  workspace_ = *std::move(workspace);
  absl::Status status = context_->Check(
      norm::cuda::InitWorkspace(workspace_.data(), workspace_.size(), stream_.get()));
  if (!status.ok()) return status;
  return context_->Check(cudaStreamSynchronize(stream_.get()), "workspace");
}

absl::Status CudaStream::CopyIn(std::byte* device, const std::byte* host, std::size_t bytes) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  return context_->Check(
      cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_.get()), "copy in");
}

absl::Status CudaStream::CopyOut(std::byte* host, const std::byte* device, std::size_t bytes) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  return context_->Check(
      cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_.get()), "copy out");
}

absl::Status CudaStream::Normalize(const norm::NormSpec& spec, const norm::NormParams& params,
                                   const norm::Segment* segments, std::size_t count) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  norm::cuda::LaunchOptions options;
  options.stream = stream_.get();
  options.workspace = workspace_.data();
  options.workspace_bytes = workspace_.size();
  const norm::Status launched =
      norm::cuda::Normalize(spec, params, segments, count, context_->limits(), options);
  if (launched.code() != norm::StatusCode::kOutOfMemory) return context_->Check(launched);
  // Tensors on the device may be larger than the lane was made for. It keeps the workspace for
  // later ones.
  const std::size_t wanted = norm::cuda::WorkspaceBytes(spec, segments, count, context_->limits());
  absl::Status status = Wait();
  if (status.ok()) status = TakeWorkspace(wanted);
  if (!status.ok()) return status;
  options.workspace = workspace_.data();
  options.workspace_bytes = workspace_.size();
  return context_->Check(
      norm::cuda::Normalize(spec, params, segments, count, context_->limits(), options));
}

absl::Status CudaStream::PrepareLinear(const norm::LinearNormSpec& spec,
                                       const norm::LinearNormParams& params,
                                       MutableBytes prepared) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  return context_->Check(norm::cuda::PrepareLinearWeights(
      spec, params, context_->limits(), prepared.data(), prepared.size(), stream_.get()));
}

absl::Status CudaStream::LinearNorm(const norm::LinearNormSpec& spec, ConstBytes prepared,
                                    const norm::LinearNormSegment* segments, std::size_t count,
                                    MutableBytes workspace) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  norm::cuda::LinearLaunchOptions options;
  options.stream = stream_.get();
  options.workspace = workspace.data();
  options.workspace_bytes = workspace.size();
  return context_->Check(
      norm::cuda::LinearNorm(spec, prepared.data(), segments, count, context_->limits(), options));
}

absl::StatusOr<CudaStream::Mark> CudaStream::AddMark() {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  if (used_events_ == events_.size()) {
    cudaEvent_t event = nullptr;
    absl::Status status = context_->Check(cudaEventCreate(&event), "event");
    if (!status.ok()) return status;
    events_.emplace_back(event);
  }
  const absl::Status status = context_->Check(
      cudaEventRecord(events_[used_events_].get(), stream_.get()), "cudaEventRecord");
  if (!status.ok()) return status;
  return static_cast<Mark>(used_events_++);
}

absl::Status CudaStream::Await(DeviceStream& other, Mark mark) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  // The streams of a device are all of this class.
  const auto& events = static_cast<CudaStream&>(other).events_;
  return context_->Check(
      cudaStreamWaitEvent(stream_.get(), events[static_cast<std::size_t>(mark)].get(), 0),
      "cudaStreamWaitEvent");
}

Duration CudaStream::Between(Mark first, Mark second) {
  float milliseconds = 0;
  static_cast<void>(context_->Check(
      cudaEventElapsedTime(&milliseconds, events_[static_cast<std::size_t>(first)].get(),
                           events_[static_cast<std::size_t>(second)].get()),
      "cudaEventElapsedTime"));
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<float, std::milli>(milliseconds));
}

// A word of host memory that the device writes when it gets there: reading it takes no lock of the
// driver's, which the enqueueing threads need.
absl::StatusOr<CudaStream::Point> CudaStream::AddPoint() {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  const Point point = last_point_ + 1;
  const CUresult result = context_->write_value()(
      stream_.get(), reinterpret_cast<CUdeviceptr>(reached_), point, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS) {
    // The runtime knows the error's name, and whether the context is lost.
    const cudaError_t state = cudaStreamQuery(stream_.get());
    return state != cudaSuccess && state != cudaErrorNotReady
               ? context_->Check(state, "point")
               : absl::InternalError(
                     absl::StrCat("point: driver error ", static_cast<int>(result)));
  }
  last_point_ = point;
  return point;
}

absl::Status CudaStream::WaitUntil(Point point) {
  const auto begin = std::chrono::steady_clock::now();
  auto ask = begin + kAskForErrors;
  while (!IsReached(point)) {
    const auto now = std::chrono::steady_clock::now();
    if (now < begin + kSpin) {
      _mm_pause();
      continue;
    }
    std::this_thread::sleep_for(kNap);
    if (now < ask) continue;
    // A failed point is never reached.
    if (absl::Status status = context_->Enter(); !status.ok()) return status;
    const cudaError_t state = cudaStreamQuery(stream_.get());
    if (state != cudaErrorNotReady && !IsReached(point)) {
      return state == cudaSuccess
                 ? absl::InternalError("point: not reached by a stream that is done")
                 : context_->Check(state, "batch");
    }
    ask = now + kAskForErrors;
  }
  return absl::OkStatus();
}

absl::Status CudaStream::Wait() {
  const absl::StatusOr<Point> point = AddPoint();
  if (point.ok()) return WaitUntil(*point);
  static_cast<void>(cudaStreamSynchronize(stream_.get()));
  return point.status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceStream>> CreateCudaStream(std::shared_ptr<CudaContext> context,
                                                               CudaMemory& memory,
                                                               std::size_t largest_launch_bytes) {
  auto stream = std::make_unique<CudaStream>(std::move(context));
  if (absl::Status status = stream->Initialize(memory, largest_launch_bytes); !status.ok()) {
    return status;
  }
  return stream;
}

}  // namespace normd
