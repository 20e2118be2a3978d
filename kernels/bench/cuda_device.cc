#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/bench/cuda_linear.h"
#include "kernels/bench/cuda_memory.h"
#include "kernels/bench/cuda_reference.h"
#include "kernels/bench/cuda_staged_check.h"
#include "kernels/bench/data.h"
#include "kernels/bench/device.h"
#include "kernels/cuda/normalize.h"

namespace normd::norm::bench {
namespace {

constexpr int kMinRepetitions = 9;
constexpr int kMaxRepetitions = 500;
constexpr double kMinSampleMs = 0.5;  // Shorter calls are enqueued several times in one sample.
constexpr int kMaxCallsPerSample = 64;
constexpr std::int64_t kMaxReplayedBytes = 16 << 20;
// The buffers that calls take in turn are this many bytes together at least: four times the largest
// L2 cache, so that no call finds its tensor there.
constexpr std::size_t kRotatedBytes = 256 << 20;
// The results of a case with stages, which are checked on the host.
constexpr std::int64_t kCheckedElements = 1 << 20;

// Parameters in device memory.
struct DeviceParams {
  Status Fill(const HostParams& host) {
    for (auto [from, to, vector] :
         {std::tuple(&host.gamma, &gamma, &view.gamma), std::tuple(&host.beta, &beta, &view.beta),
          std::tuple(&host.mean, &mean, &view.mean),
          std::tuple(&host.variance, &variance, &view.variance),
          std::tuple(&host.input_bias, &input_bias, &view.input_bias)}) {
      if (from->empty()) continue;
      if (Status status = Upload(*from, to); !status.ok()) return status;
      *vector = {to->get(), host.dtype};
    }
    return Status();
  }

  DeviceBuffer gamma, beta, mean, variance, input_bias;
  NormParams view;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const Settings& settings) : settings_(settings) {}
  ~CudaDevice() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status Open() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      return Status(StatusCode::kUnsupported, "device: no CUDA device");
    }
    if (Status status = cuda::QueryDeviceLimits(0, &limits_); !status.ok()) return status;
    return ToStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }

  std::string Description() const override {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return "CUDA";
    return std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) +
           " multiprocessors";
  }

  Status Measure(Case* scaled, Measurement* out) override {
    if (Status status = ParseForced(); !status.ok()) return status;
    ScaleTo(MaxTensorBytes(), scaled);
    Run run(*scaled);
    if (Status status = Prepare(&run); !status.ok()) return status;
    if (Status status = Check(run, out); !status.ok()) return status;
    return Time(run, out);
  }

  Status MeasureLinear(const LinearCase& c, LinearMeasurement* out) override {
    return MeasureLinearOnCuda(settings_, limits_, stream_, c, out);
  }

  Status Explain(const Case& c, std::string* out) override {
    cuda::Plan plan;
    if (Status status = ParseForced(); !status.ok()) return status;
    NormParams params;
    const bool norm = c.spec.statistics > Statistics::kGiven;
    // The addresses are not read.
    if (!norm) params.gamma = params.beta = {&params, ParamType(c)};
    if (c.input_bias) params.input_bias = {&params, ParamType(c)};
    Status status = cuda::MakePlan(c.spec, c.spatial, cuda::PresentParams::Of(params, c.spec.dtype),
                                   limits_, forced_, &plan);
    *out = cuda::Describe(plan);
    return status;
  }

 private:
  DType ParamType(const Case& c) const {
    return settings_.params_like_tensor ? c.spec.dtype : settings_.param_dtype;
  }

  // The fused layer's tiles have other names.
  Status ParseForced() {
    return settings_.strategy.empty() ? Status()
                                      : cuda::ParseStrategy(settings_.strategy, &forced_);
  }

  // A case with its buffers.
  struct Run {
    explicit Run(const Case& measured) : c(measured) {}

    const Case& c;
    std::vector<DeviceBuffer> x, y;         // Taken in turn.
    std::vector<DeviceBuffer> second, sum;  // Likewise; empty if the spec has none.
    DeviceBuffer gate, scale, shift, indexes, scales, mean, rstd;
    DeviceParams params;
    DeviceBuffer workspace;
    std::size_t workspace_bytes = 0;

    Segment segment(std::size_t call) const {
      const std::size_t i = call % x.size();
      Segment segment;
      segment.x = x[i].get();
      segment.y = y[i].get();
      segment.samples = c.samples;
      segment.spatial = c.spatial;
      segment.spatial_runs = c.spatial_runs;
      if (c.spec.residual) segment.residual = second[i].get();
      if (c.spec.takes_other()) segment.other = second[i].get();
      if (c.spec.style == Style::kTensor) {
        segment.style_tensor = second[i].get();
        segment.style_spatial = c.spatial;
      }
      if (c.spec.residual_out) segment.residual_out = sum[i].get();
      segment.gate = gate.get();
      segment.scale = scale.get();
      segment.shift = shift.get();
      segment.style_index = static_cast<const std::int64_t*>(indexes.get());
      segment.scale_out = static_cast<float*>(scales.get());
      segment.mean_out = mean.get();
      segment.rstd_out = rstd.get();
      return segment;
    }
  };

  std::int64_t MaxTensorBytes() const {
    if (settings_.max_tensor_bytes > 0) return settings_.max_tensor_bytes;
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return static_cast<std::int64_t>(free / 3);
  }

  Status Prepare(Run* run) const {
    const auto bytes = static_cast<std::size_t>(run->c.tensor_bytes());
    const NormSpec& spec = run->c.spec;
    DeviceBuffer pool;
    Status status = Upload(RandomElements(spec.dtype, kPoolElements, -1, 2, settings_.seed), &pool);
    const std::size_t sets = std::max<std::size_t>(1, kRotatedBytes / (2 * bytes) + 1);
    const auto fill = [&](std::uint64_t seed, std::vector<DeviceBuffer>* buffers) {
      DeviceBuffer buffer;
      if (status.ok()) status = Allocate(bytes, &buffer);
      if (!status.ok()) return;
      status = ToStatus(
          FillFromPool(pool.get(), spec.dtype, settings_.seed + seed, bytes, buffer.get(), stream_),
          "fill");
      buffers->push_back(std::move(buffer));
    };
    for (std::size_t i = 0; status.ok() && i < std::min<std::size_t>(sets, 64); ++i) {
      fill(i, &run->x);
      fill(i, &run->y);
      if (run->c.has_second()) fill(i + 1000, &run->second);
      if (spec.residual_out) fill(i, &run->sum);
    }
    if (status.ok()) status = PrepareOfSamples(run);
    if (status.ok()) {
      status = run->params.Fill(HostParams(run->c, ParamType(run->c), settings_.seed));
    }
    if (!status.ok()) return status;
    const Segment segment = run->segment(0);
    run->workspace_bytes = cuda::WorkspaceBytes(spec, &segment, 1, limits_, forced_);
    status = Allocate(run->workspace_bytes, &run->workspace);
    if (!status.ok()) return status;
    status = cuda::InitWorkspace(run->workspace.get(), run->workspace_bytes, stream_);
    if (!status.ok()) return status;
    return ToStatus(cudaStreamSynchronize(stream_), "fill");  // The pool is freed next.
  }

  // Prepares the spec's per-sample and per-row tensors.
  Status PrepareOfSamples(Run* run) const {
    const NormSpec& spec = run->c.spec;
    const std::int64_t count = run->c.samples * spec.channels;
    Status status;
    for (auto [wanted, buffer] :
         {std::pair(spec.gate, &run->gate), std::pair(spec.scale, &run->scale),
          std::pair(spec.shift, &run->shift)}) {
      if (!wanted || !status.ok()) continue;
      status = Upload(RandomElements(spec.dtype, count, -0.5, 0.5, settings_.seed + 5), buffer);
    }
    if (status.ok() && spec.style == Style::kIndex) {
      std::vector<char> indexes(static_cast<std::size_t>(run->c.samples) * sizeof(std::int64_t));
      for (std::int64_t n = 0; n < run->c.samples; ++n) {
        const std::int64_t index = 7 * n % spec.styles;
        std::memcpy(indexes.data() + n * 8, &index, sizeof(index));
      }
      status = Upload(indexes, &run->indexes);
    }
    if (status.ok() && spec.quantization_scale != QuantizationScale::kStatic) {
      status = Allocate(static_cast<std::size_t>(run->c.elements()) * sizeof(float), &run->scales);
    }
    const bool centered = spec.statistics == Statistics::kMeanVariance;
    for (auto [wanted, buffer] : {std::pair(centered, &run->mean), std::pair(true, &run->rstd)}) {
      if (!run->c.statistics || !wanted || !status.ok()) continue;
      status = Allocate(static_cast<std::size_t>(run->c.rows()) * sizeof(double), buffer);
    }
    return status;
  }

  Status Normalize(const Run& run, std::size_t call) const {
    const Segment segment = run.segment(call);
    cuda::LaunchOptions options;
    options.stream = stream_;
    options.workspace = run.workspace.get();
    options.workspace_bytes = run.workspace_bytes;
    options.forced = forced_;
    return cuda::Normalize(run.c.spec, run.params.view, &segment, 1, limits_, options);
  }

  Status Check(const Run& run, Measurement* out) const {
    cuda::Plan plan;
    const auto params = cuda::PresentParams::Of(run.params.view, run.c.spec.dtype);
    Status status = cuda::MakePlan(run.c.spec, run.c.spatial, params, limits_, forced_, &plan);
    out->strategy = cuda::Name(plan.strategy);
    if (plan.strategy == cuda::Strategy::kChannelsLast) {
      out->strategy += std::string("/") + cuda::Name(plan.strips);
    }
    if (!status.ok()) return status;
    const Segment segment = run.segment(0);
    // All ones is a NaN in every type, so an element that is not written shows in the error.
    const auto bytes = static_cast<std::size_t>(run.c.tensor_bytes());
    for (void* const output : {segment.y, segment.residual_out}) {
      if (output == nullptr || !status.ok()) continue;
      status = ToStatus(cudaMemsetAsync(output, 0xff, bytes, stream_), "cudaMemset");
    }
    if (status.ok()) status = Normalize(run, 0);
    if (!status.ok()) return status;
    // The reference on the device has plain specs and norms.
    NormSpec plain = run.c.spec;
    if (plain.statistics > Statistics::kGiven) plain.statistics = Statistics::kMeanSquare;
    if (!IsPlain(plain, run.params.view) || plain.residual) {
      status = ToStatus(cudaStreamSynchronize(stream_), "run");
      if (!status.ok()) return status;
      const HostParams host(run.c, ParamType(run.c), settings_.seed);
      return MaxErrorOfStages(run.c, host, segment, kCheckedElements, &out->max_error,
                              &out->checked_elements);
    }
    DeviceError error;
    status =
        ToStatus(MaxErrorOnDevice(run.c.spec, run.params.view, segment, stream_, &error), "check");
    out->max_error = error.max_error;
    out->checked_elements = error.elements;
    return status;
  }

  Status Time(const Run& run, Measurement* out) const {
    const auto normalize = [&](std::size_t call) { return Normalize(run, call); };
    const auto copy = [&](std::size_t call) {
      const Segment segment = run.segment(call);
      return ToStatus(
          cudaMemcpyAsync(segment.y, segment.x, static_cast<std::size_t>(run.c.tensor_bytes()),
                          cudaMemcpyDeviceToDevice, stream_),
          "copy");
    };
    std::size_t next = 0;
    double first_ms = 0, copy_first_ms = 0;
    for (int warm_up = 0; warm_up < 2; ++warm_up) {
      for (Status status : {timer_.Time(stream_, 3, &next, normalize, &first_ms),
                            timer_.Time(stream_, 3, &next, copy, &copy_first_ms)}) {
        if (!status.ok()) return status;
      }
    }
    const int calls = static_cast<int>(
        std::clamp(kMinSampleMs / std::max(first_ms, 1e-3), 1.0, double{kMaxCallsPerSample}));
    std::vector<double> norm_ms, copy_ms, ratios;
    double total_ms = 0;
    while ((total_ms < settings_.min_seconds * 1e3 || out->repetitions < kMinRepetitions) &&
           out->repetitions < kMaxRepetitions) {
      double one_copy_ms = 0, one_norm_ms = 0;
      for (Status status : {timer_.Time(stream_, calls, &next, copy, &one_copy_ms),
                            timer_.Time(stream_, calls, &next, normalize, &one_norm_ms)}) {
        if (!status.ok()) return status;
      }
      one_copy_ms *=
          static_cast<double>(run.c.moved_bytes()) / static_cast<double>(2 * run.c.tensor_bytes());
      copy_ms.push_back(one_copy_ms);
      norm_ms.push_back(one_norm_ms);
      ratios.push_back(one_copy_ms / one_norm_ms);
      total_ms += calls * (one_copy_ms + one_norm_ms);
      ++out->repetitions;
    }
    out->norm_ms = Median(&norm_ms);
    out->copy_ms = Median(&copy_ms);
    out->ratio = Median(&ratios);
    if (run.c.tensor_bytes() > kMaxReplayedBytes) return Status();
    return timer_.TimeReplay(stream_, kMaxCallsPerSample, &next, normalize, &out->replay_ms);
  }

  const Settings settings_;
  cuda::DeviceLimits limits_;
  cuda::Strategy forced_ = cuda::Strategy::kAuto;
  cudaStream_t stream_ = nullptr;
  const Timer timer_;
};

}  // namespace

Status MakeCudaDevice(const Settings& settings, std::unique_ptr<Device>* out) {
  auto device = std::make_unique<CudaDevice>(settings);
  Status status = device->Open();
  if (status.ok()) *out = std::move(device);
  return status;
}

}  // namespace normd::norm::bench
