#include "client/python/native/backends.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "client/python/native/dtypes.h"
#include "client/python/native/order.h"

namespace normd::torch_ops {
namespace {

constexpr int kMaxDevices = 64;

norm_batch BatchOf(const norm_tensors& tensors) {
  return {sizeof(norm_batch), sizeof(norm_tensors), &tensors, 1};
}

// The arguments that determine a workspace's size.
struct Problem {
  norm_spec spec;
  std::int64_t samples, spatial, style_spatial;
  std::int64_t spatial_runs[4];
  std::int64_t x_pitch, y_pitch;
  const norm_cuda_device* device;
  // Whether there are outputs and parameters that change how a batch is computed.
  bool mean_out, rstd_out, input_bias, same_params;

  bool operator==(const Problem& other) const {
    return std::memcmp(this, &other, sizeof(*this)) == 0;
  }
};

// The bytes of workspace for a batch. Models call with few sizes; each thread caches some.
std::size_t WorkspaceBytes(const char* name, const norm_cuda_device* device, const norm_spec& spec,
                           const norm_params& params, const norm_tensors& tensors) {
  struct Entry {
    Problem problem;
    std::size_t bytes;
  };
  thread_local std::array<Entry, 64> entries{};
  Problem problem;
  std::memset(&problem, 0, sizeof(problem));  // The padding is compared too.
  std::memcpy(&problem.spec, &spec, sizeof(spec));
  problem.samples = tensors.samples;
  problem.spatial = tensors.spatial;
  problem.style_spatial = tensors.style_spatial;
  problem.x_pitch = tensors.x_pitch;
  problem.y_pitch = tensors.y_pitch;
  std::copy(std::begin(tensors.spatial_runs), std::end(tensors.spatial_runs),
            std::begin(problem.spatial_runs));
  problem.device = device;
  problem.mean_out = tensors.mean_out != nullptr;
  problem.rstd_out = tensors.rstd_out != nullptr;
  problem.input_bias = params.input_bias.data != nullptr;
  const auto hash = static_cast<std::uint64_t>(problem.samples * 31 + problem.spatial * 17 +
                                               spec.channels * 7 + spec.groups + spec.dtype);
  Entry& entry = entries[(hash ^ (hash >> 7)) % entries.size()];
  if (entry.problem == problem) return entry.bytes;
  const norm_batch batch = BatchOf(tensors);
  std::size_t bytes = 0;
  CheckKernels(name, norm_cuda_batch_workspace_bytes(device, &spec, &batch, nullptr, &bytes));
  entry = {problem, bytes};
  return bytes;
}

// Small workspaces, one for each stream, which need no preparation after their first use.
class KeptWorkspaces {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  // Returns at least *bytes bytes and writes the size to *bytes. The workspace's device is current.
  void* Get(const Tensor& x, void* stream, std::size_t* bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Tensor& kept = kept_[{x.device_index(), stream}];
    if (!kept || kept.size(0) < static_cast<std::int64_t>(*bytes)) {
      // Work on the stream may still use the old one: PyTorch's allocator reuses freed memory only
      // for later work of the same stream.
      kept = NewBytes(static_cast<std::int64_t>(*bytes), x);
      CheckKernels("workspace", norm_cuda_workspace_init(kept.data(), *bytes, stream));
    }
    *bytes = static_cast<std::size_t>(kept.size(0));
    return kept.data();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::int32_t, void*>, Tensor> kept_;
};

// Never destroyed: PyTorch's allocator may be gone when the process ends.
KeptWorkspaces& Workspaces() {
  static auto* const workspaces = new KeptWorkspaces;
  return *workspaces;
}

const norm_cuda_device* OpenDevice(const char* name, std::int32_t index) {
  static std::mutex mutex;
  static std::array<norm_cuda_device*, kMaxDevices> devices{};
  const std::lock_guard<std::mutex> lock(mutex);
  if (index < 0 || index >= kMaxDevices) {
    throw std::runtime_error(std::string("normd::") + name + ": x.device: cuda:" +
                             std::to_string(index) + ", wanted cuda:0 to cuda:63");
  }
  norm_cuda_device*& device = devices[static_cast<std::size_t>(index)];
  if (device == nullptr) CheckKernels(name, norm_cuda_device_open(index, &device));
  return device;
}

void NormalizeOnCuda(const char* name, const Tensor& x, const norm_spec& spec,
                     const norm_params& params, const norm_tensors& tensors) {
  const CudaScope scope(name, x);
  std::size_t bytes = WorkspaceBytes(name, scope.device(), spec, params, tensors);
  norm_cuda_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.stream = scope.stream();
  Tensor own;
  if (bytes > 0 && (bytes > KeptWorkspaces::kMostBytes || scope.IsCapturing())) {
    // A graph's replays may overlap other work of the stream that it was captured on.
    own = NewBytes(static_cast<std::int64_t>(bytes), x);
    launch.workspace = own.data();
    launch.new_workspace = 1;
  } else if (bytes > 0) {
    launch.workspace = Workspaces().Get(x, scope.stream(), &bytes);
  }
  launch.workspace_bytes = bytes;
  const norm_batch batch = BatchOf(tensors);
  CheckKernels(name, norm_cuda_normalize_batch(scope.device(), &spec, &params, &batch, &launch));
}

}  // namespace

void CheckKernels(const char* name, norm_result result) {
  if (result == NORM_OK) return;
  throw std::runtime_error(std::string("normd::") + name + ": " + norm_last_error());
}

const norm_cpu_executor* CpuExecutor() {
  static std::mutex mutex;
  static auto* const executors = new std::map<std::uint32_t, norm_cpu_executor*>;
  // The thread's last executor: executors are never destroyed.
  thread_local std::uint32_t last_threads = 0;
  thread_local const norm_cpu_executor* last = nullptr;
  std::uint32_t threads = 1;
  CheckTorch(Torch().get_num_threads(&threads), "get_num_threads");
  if (last != nullptr && last_threads == threads) return last;
  const std::lock_guard<std::mutex> lock(mutex);
  norm_cpu_executor*& executor = (*executors)[threads];
  if (executor == nullptr) {
    CheckKernels("executor",
                 norm_cpu_executor_create(static_cast<std::int32_t>(threads), &executor));
  }
  last_threads = threads;
  last = executor;
  return executor;
}

CudaScope::CudaScope(const char* name, const Tensor& x) {
  const TorchAbi& torch = Torch();
  if (torch.current_cuda_stream == nullptr || torch.create_cuda_guard == nullptr) {
    throw std::runtime_error(std::string("normd::") + name +
                             ": x.device: cuda, but this PyTorch has no CUDA");
  }
  std::int32_t current = -1;
  const bool known =
      torch.current_device_index != nullptr && torch.current_device_index(&current) == 0;
  if (!known || current != x.device_index()) {
    CheckTorch(torch.create_cuda_guard(x.device_index(), &guard_), "CUDAGuard");
  }
  device_ = OpenDevice(name, x.device_index());
  CheckTorch(torch.current_cuda_stream(x.device_index(), &stream_), "current stream");
}

CudaScope::~CudaScope() {
  if (guard_ != nullptr) Torch().delete_cuda_guard(guard_);
}

bool CudaScope::IsCapturing() const {
  int status = 0;
  const auto is_capturing = Torch().stream_is_capturing;
  return is_capturing != nullptr && is_capturing(stream_, &status) == 0 && status != 0;
}

Tensor NewBytes(std::int64_t bytes, const Tensor& x) {
  const std::int64_t stride = 1;
  return Tensor::Empty(&bytes, &stride, 1, TorchDTypes().uint8, x);
}

void Normalize(const char* name, const Tensor& x, const norm_spec& spec, const norm_params& params,
               const norm_tensors& tensors) {
  if (x.device_type() == Torch().device_type_cuda()) {
    NormalizeOnCuda(name, x, spec, params, tensors);
    return;
  }
  const norm_batch batch = BatchOf(tensors);
  CheckKernels(name, norm_cpu_normalize_batch(CpuExecutor(), &spec, &params, &batch));
}

}  // namespace normd::torch_ops
