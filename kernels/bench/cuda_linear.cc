#include "kernels/bench/cuda_linear.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/bench/cuda_linear_reference.h"
#include "kernels/bench/cuda_memory.h"
#include "kernels/bench/cuda_reference.h"
#include "kernels/bench/data.h"
#include "kernels/cuda/linear_norm.h"

namespace normd::norm::bench {
namespace {

constexpr int kMinRepetitions = 9;
constexpr int kMaxRepetitions = 500;
constexpr double kMinSampleMs = 0.5;  // Shorter calls are enqueued several times in one sample.
constexpr int kMaxCallsPerSample = 64;

// A layer of (z + y) * y in device memory, with random weights of order 1 / sqrt(in_features), and
// a batch of one segment.
class LinearRun {
 public:
  LinearRun(const Settings& settings, const cuda::DeviceLimits& limits, cudaStream_t stream)
      : settings_(settings), limits_(limits), stream_(stream) {}

  Status Prepare(const LinearCase& c) {
    spec_.in_features = c.in_features;
    spec_.out_features = c.out_features;
    spec_.dtype = c.dtype;
    spec_.precision = c.precision;
    spec_.epilogue.add = spec_.epilogue.multiply = true;
    options_.stream = stream_;
    if (!settings_.strategy.empty()) {
      Status status = cuda::ParseLinearTile(settings_.strategy, &options_.forced);
      if (!status.ok()) return status;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(c.in_features));
    const std::int64_t results = c.samples * c.out_features;
    for (auto [buffer, dtype, elements, limit] :
         {std::tuple(&weight_, DType::kFloat32, c.in_features * c.out_features, bound),
          std::tuple(&bias_, DType::kFloat32, c.out_features, bound),
          std::tuple(&x_, c.dtype, c.samples * c.in_features, 1.0),
          std::tuple(&y_, c.dtype, results, 1.0), std::tuple(&out_, c.dtype, results, 1.0)}) {
      if (Status status = Fill(dtype, elements, limit, buffer); !status.ok()) return status;
    }
    params_.weight = {weight_.get(), DType::kFloat32};
    params_.bias = {bias_.get(), DType::kFloat32};
    segment_ = {x_.get(), y_.get(), out_.get(), c.samples};
    return PrepareLayer();
  }

  cuda::LinearPlan plan() const {
    return cuda::MakeLinearPlan(spec_, limits_, segment_.samples, options_.forced);
  }

  Status Compute() const {
    return cuda::LinearNorm(spec_, prepared_.get(), &segment_, 1, limits_, options_);
  }

  Status Check(LinearMeasurement* out) const {
    // All ones is a NaN in every type, so an element that is not written shows in the error.
    const auto bytes =
        static_cast<std::size_t>(segment_.samples * spec_.out_features) * SizeOf(spec_.dtype);
    Status status = ToStatus(cudaMemsetAsync(segment_.out, 0xff, bytes, stream_), "cudaMemset");
    if (status.ok()) status = Compute();
    if (!status.ok()) return status;
    LinearError error;
    status = ToStatus(LinearErrorOnDevice(spec_, params_, segment_, stream_, &error), "check");
    out->max_error = error.max;
    out->checked_samples = error.samples;
    return status;
  }

 private:
  Status Fill(DType dtype, std::int64_t elements, double limit, DeviceBuffer* out) {
    const std::uint64_t seed = settings_.seed + parts_++;
    const auto bytes = static_cast<std::size_t>(elements) * SizeOf(dtype);
    DeviceBuffer pool;
    Status status = Upload(RandomElements(dtype, kPoolElements, -limit, limit, seed), &pool);
    if (status.ok()) status = Allocate(bytes, out);
    if (!status.ok()) return status;
    status = ToStatus(FillFromPool(pool.get(), dtype, seed, bytes, out->get(), stream_), "fill");
    if (!status.ok()) return status;
    return ToStatus(cudaStreamSynchronize(stream_), "fill");  // The pool is freed next.
  }

  Status PrepareLayer() {
    const std::size_t bytes = cuda::LinearWeightBytes(spec_, limits_);
    Status status = Allocate(bytes, &prepared_);
    if (!status.ok()) return status;
    status = cuda::PrepareLinearWeights(spec_, params_, limits_, prepared_.get(), bytes, stream_);
    options_.workspace_bytes =
        cuda::LinearWorkspaceBytes(spec_, segment_.samples, limits_, options_.forced);
    if (status.ok()) status = Allocate(options_.workspace_bytes, &workspace_);
    options_.workspace = workspace_.get();
    return status;
  }

  const Settings& settings_;
  const cuda::DeviceLimits& limits_;
  const cudaStream_t stream_;
  std::uint64_t parts_ = 0;
  LinearNormSpec spec_;
  LinearNormParams params_;
  LinearNormSegment segment_;
  cuda::LinearLaunchOptions options_;
  DeviceBuffer weight_, bias_, x_, y_, out_, prepared_, workspace_;
};

}  // namespace

Status MeasureLinearOnCuda(const Settings& settings, const cuda::DeviceLimits& limits,
                           cudaStream_t stream, const LinearCase& c, LinearMeasurement* out) {
  LinearRun run(settings, limits, stream);
  if (Status status = run.Prepare(c); !status.ok()) return status;
  if (Status status = run.Check(out); !status.ok()) return status;
  const cuda::LinearPlan plan = run.plan();
  out->strategy =
      std::to_string(plan.tile_features * plan.cluster) + "x" + std::to_string(plan.tile_samples);
  const Timer timer;
  std::size_t next = 0;
  const auto compute = [&](std::size_t) { return run.Compute(); };
  double ms = 0;
  for (int warm_up = 0; warm_up < 2; ++warm_up) {
    if (Status s = timer.Time(stream, 3, &next, compute, &ms); !s.ok()) return s;
  }
  const int calls = static_cast<int>(
      std::clamp(kMinSampleMs / std::max(ms, 1e-3), 1.0, double{kMaxCallsPerSample}));
  std::vector<double> times;
  double total_ms = 0;
  while ((total_ms < settings.min_seconds * 1e3 || out->repetitions < kMinRepetitions) &&
         out->repetitions < kMaxRepetitions) {
    if (Status s = timer.Time(stream, calls, &next, compute, &ms); !s.ok()) return s;
    times.push_back(ms);
    total_ms += calls * ms;
    ++out->repetitions;
  }
  out->layer_ms = Median(&times);
  return Status();
}

}  // namespace normd::norm::bench
