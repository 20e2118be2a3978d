#include "kernels/cuda/linear_norm.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/linear/tensor_map.h"

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kMaxFeatures = std::int64_t{1} << 30;
constexpr std::uintptr_t kAlignment = 256;

Status CheckFeatures(const LinearNormSpec& spec) {
  for (auto [name, features] :
       {std::pair("in_features", spec.in_features), std::pair("out_features", spec.out_features)}) {
    if (features < kMaxFeatures) continue;
    return Status(StatusCode::kUnsupported,
                  std::string(name) + ": " + std::to_string(features) + ", wanted fewer than 2^30");
  }
  return Status();
}

Status CheckMemory(const char* name, const void* data, std::size_t bytes, std::size_t wanted) {
  if (data == nullptr) bytes = 0;
  if (bytes < wanted) {
    return Status(StatusCode::kOutOfMemory, std::string(name) + ": " + std::to_string(bytes) +
                                                " bytes, wanted " + std::to_string(wanted));
  }
  if (reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) {
    return InvalidArgument(std::string(name) + ": not aligned to 256 bytes");
  }
  return Status();
}

// The samples of a batch in parts that fit into one launch.
class Chunks {
 public:
  Chunks(const LinearNormSpec& spec, const LinearNormSegment* segments, std::size_t count)
      : element_bytes_(static_cast<std::int64_t>(SizeOf(spec.dtype))),
        x_row_bytes_(spec.in_features * element_bytes_),
        y_row_bytes_(spec.out_features * element_bytes_),
        segments_(segments),
        count_(count) {}

  // False if nothing is left.
  bool Next(LinearBatch* batch) {
    batch->segment_count = 0;
    batch->samples = 0;
    while (index_ < count_ && batch->segment_count < kMaxLinearSegments &&
           batch->samples < kLinearChunkSamples) {
      const LinearNormSegment& segment = segments_[index_];
      const std::int64_t taken =
          std::min(segment.samples - done_, kLinearChunkSamples - batch->samples);
      if (taken > 0) Append(segment, taken, batch);
      done_ += taken;
      if (done_ < segment.samples) continue;
      ++index_;
      done_ = 0;
    }
    return batch->samples > 0;
  }

 private:
  void Append(const LinearNormSegment& segment, std::int64_t taken, LinearBatch* batch) const {
    batch->samples += static_cast<std::int32_t>(taken);
    LinearRows& rows = batch->segments[batch->segment_count++];
    rows.x = static_cast<const char*>(segment.x) + done_ * x_row_bytes_;
    rows.y =
        segment.y == nullptr ? nullptr : static_cast<const char*>(segment.y) + done_ * y_row_bytes_;
    rows.out = static_cast<char*>(segment.out) + done_ * y_row_bytes_;
    rows.end = batch->samples;
  }

  const std::int64_t element_bytes_;
  const std::int64_t x_row_bytes_;
  const std::int64_t y_row_bytes_;
  const LinearNormSegment* const segments_;
  const std::size_t count_;
  std::size_t index_ = 0;
  std::int64_t done_ = 0;  // Finished samples of segments_[index_].
};

cudaError_t EnqueueX(const LinearNormSpec& spec, const LinearPlan& plan, const LinearBatch& batch,
                     const WorkspaceLayout& layout, char* workspace, cudaStream_t stream) {
  OperandTask task = {};
  task.batch = batch;
  task.columns = spec.in_features;
  task.present = batch.samples;
  task.rows = batch.samples;
  task.k = (spec.in_features + kStepElements - 1) / kStepElements * kStepElements;
  task.block_rows = plan.tile_samples;
  task.parts = plan.x_parts;
  task.format = plan.format;
  task.dtype = spec.dtype;
  task.operand = workspace + layout.x;
  task.exponents = reinterpret_cast<int*>(workspace + layout.exponents);
  return LaunchOperand(task, stream);
}

// Describes the batch's own rows to the product if it can read them: x is then not copied.
bool MapX(const LinearNormSpec& spec, const LinearPlan& plan, const LinearBatch& batch,
          CUtensorMap* map) {
  if (!plan.reads_x) return false;
  const auto row_bytes = spec.in_features * static_cast<std::int64_t>(SizeOf(spec.dtype));
  for (int i = 1; i < batch.segment_count; ++i) {
    const std::int64_t samples = batch.segments[i - 1].end;
    if (batch.segments[i].x != batch.segments[0].x + samples * row_bytes) return false;
  }
  return MapRows(batch.segments[0].x, batch.samples, spec.in_features,
                 plan.tile_samples / plan.cluster, map);
}

// Blocks are persistent: one that had to wait for a place would begin when the others end.
int ResidentClusters(const DeviceLimits& limits, int cluster) {
  const int known = cluster == 1 ? 0 : limits.resident_clusters[static_cast<std::size_t>(cluster)];
  return known > 0 ? known : std::max(1, limits.multiprocessors / cluster);
}

cudaError_t EnqueueProduct(const LinearNormSpec& spec, const LinearPlan& plan,
                           const DeviceLimits& limits, const char* prepared,
                           const LinearBatch& batch, const WorkspaceLayout& layout, char* workspace,
                           cudaStream_t stream) {
  const WeightLayout weights = MakeWeightLayout(spec, limits);
  ProductTask task = {};
  if (!MapX(spec, plan, batch, &task.x_map)) {
    const cudaError_t error = EnqueueX(spec, plan, batch, layout, workspace, stream);
    if (error != cudaSuccess) return error;
    task.x = workspace + layout.x;
    task.x_exponents = reinterpret_cast<const int*>(workspace + layout.exponents);
  }
  task.weight = prepared + weights.weight;
  task.weight_exponents = reinterpret_cast<const int*>(prepared + weights.exponents);
  task.bias = reinterpret_cast<const float*>(prepared + weights.bias);
  task.z = reinterpret_cast<float*>(workspace + layout.z);
  task.z_pitch = layout.z_pitch;
  task.k = weights.k;
  task.samples = batch.samples;
  task.features = static_cast<std::int32_t>(spec.out_features);
  task.clusters = ResidentClusters(limits, plan.cluster);
  return plan.path == LinearPath::kTensor ? LaunchTensorProduct(plan, task, stream)
                                          : LaunchPlainProduct(plan, task, stream);
}

cudaError_t EnqueueFinish(const LinearNormSpec& spec, const LinearPlan& plan,
                          const LinearBatch& batch, const WorkspaceLayout& layout,
                          const char* workspace, cudaStream_t stream) {
  FinishTask task = {};
  task.batch = batch;
  task.z = reinterpret_cast<const float*>(workspace + layout.z);
  task.z_pitch = layout.z_pitch;
  task.features = static_cast<std::int32_t>(spec.out_features);
  task.eps = static_cast<float>(spec.eps);
  task.dtype = spec.dtype;
  task.epilogue = spec.epilogue;
  return LaunchFinish(task, plan.path == LinearPath::kTensor, stream);
}

Status EnqueueChunk(const LinearNormSpec& spec, const char* prepared, const LinearBatch& batch,
                    const DeviceLimits& limits, const LinearLaunchOptions& options) {
  const LinearPlan plan = MakeLinearPlan(spec, limits, batch.samples, options.forced);
  const WorkspaceLayout layout = MakeWorkspaceLayout(spec, plan, batch.samples);
  char* const workspace = static_cast<char*>(options.workspace);
  cudaError_t error =
      EnqueueProduct(spec, plan, limits, prepared, batch, layout, workspace, options.stream);
  if (error != cudaSuccess) return ToStatus(error, "the fused layer's product");
  error = EnqueueFinish(spec, plan, batch, layout, workspace, options.stream);
  return ToStatus(error, "the fused layer's norm");
}

}  // namespace

std::size_t LinearWeightBytes(const LinearNormSpec& spec, const DeviceLimits& limits) {
  return MakeWeightLayout(spec, limits).bytes;
}

Status PrepareLinearWeights(const LinearNormSpec& spec, const LinearNormParams& params,
                            const DeviceLimits& limits, void* prepared, std::size_t bytes,
                            cudaStream_t stream) {
  if (Status status = ValidateLinearNorm(spec, params); !status.ok()) return status;
  if (Status status = CheckFeatures(spec); !status.ok()) return status;
  const WeightLayout layout = MakeWeightLayout(spec, limits);
  if (Status status = CheckMemory("prepared", prepared, bytes, layout.bytes); !status.ok()) {
    return status;
  }
  const LinearPlan plan = MakeLinearPlan(spec, limits, 1);
  char* const base = static_cast<char*>(prepared);
  OperandTask task = {};
  task.source = params.weight;
  task.columns = spec.in_features;
  task.present = spec.out_features;
  task.rows = layout.rows;
  task.k = layout.k;
  task.block_rows = kWeightBlockRows;
  task.parts = plan.weight_parts;
  task.format = plan.format;
  task.dtype = params.weight.dtype;
  task.operand = base + layout.weight;
  task.exponents = reinterpret_cast<int*>(base + layout.exponents);
  cudaError_t error = LaunchOperand(task, stream);
  if (error == cudaSuccess) {
    error = LaunchBias(params.bias, spec.out_features, layout.rows,
                       reinterpret_cast<float*>(base + layout.bias), stream);
  }
  return ToStatus(error, "preparation of the fused layer's weights");
}

std::size_t LinearWorkspaceBytes(const LinearNormSpec& spec, std::int64_t samples,
                                 const DeviceLimits& limits, LinearTile forced) {
  if (samples <= 0) return 0;
  samples = std::min(samples, kLinearChunkSamples);
  return MakeWorkspaceLayout(spec, MakeLinearPlan(spec, limits, samples, forced), samples).bytes;
}

Status LinearNorm(const LinearNormSpec& spec, const void* prepared,
                  const LinearNormSegment* segments, std::size_t count, const DeviceLimits& limits,
                  const LinearLaunchOptions& options) {
  // The weights were validated when they were prepared; any aligned address stands for them here.
  LinearNormParams params;
  params.weight.data = prepared;
  if (Status status = ValidateLinearNorm(spec, params); !status.ok()) return status;
  if (Status status = ValidateLinearNormSegments(spec, segments, count); !status.ok()) {
    return status;
  }
  if (Status status = CheckFeatures(spec); !status.ok()) return status;
  if (reinterpret_cast<std::uintptr_t>(prepared) % kAlignment != 0) {
    return InvalidArgument("prepared: not aligned to 256 bytes");
  }
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < count; ++i) {
    samples =
        std::min(kLinearChunkSamples, samples + std::min(segments[i].samples, kLinearChunkSamples));
  }
  if (samples == 0) return Status();
  const std::size_t wanted = LinearWorkspaceBytes(spec, samples, limits, options.forced);
  if (Status status = CheckMemory("workspace", options.workspace, options.workspace_bytes, wanted);
      !status.ok()) {
    return status;
  }
  Chunks chunks(spec, segments, count);
  for (LinearBatch batch; chunks.Next(&batch);) {
    if (Status status =
            EnqueueChunk(spec, static_cast<const char*>(prepared), batch, limits, options);
        !status.ok()) {
      return status;
    }
  }
  return Status();
}

}  // namespace normd::norm::cuda
