#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "kernels/bench/cpu_linear.h"
#include "kernels/bench/data.h"
#include "kernels/bench/device.h"
#include "kernels/cpu/normalize.h"

namespace normd::norm::bench {
namespace {

constexpr int kMinRepetitions = 7;
constexpr int kMaxRepetitions = 2000;
constexpr double kMinSampleMs = 0.05;  // Shorter calls are repeated within one sample.
constexpr std::int64_t kCheckedElements = std::int64_t{1} << 20;

struct FreeBuffer {
  void operator()(void* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<char, FreeBuffer>;

// A case's tensors: x, y and the others of its spec.
struct Tensors {
  Segment segment(const Case& c) const {
    Segment segment;
    segment.x = x.get();
    segment.y = y.get();
    segment.samples = c.samples;
    segment.spatial = c.spatial;
    segment.spatial_runs = c.spatial_runs;
    if (c.spec.residual) segment.residual = second.get();
    if (c.spec.takes_other()) segment.other = second.get();
    if (c.spec.style == Style::kTensor) {
      segment.style_tensor = second.get();
      segment.style_spatial = c.spatial;
    }
    segment.residual_out = sum.get();
    if (c.spec.gate) segment.gate = gate.data();
    if (c.spec.scale) segment.scale = scale.data();
    if (c.spec.shift) segment.shift = shift.data();
    if (!indexes.empty()) segment.style_index = indexes.data();
    segment.scale_out = scales.get();
    segment.mean_out = mean.get();
    segment.rstd_out = rstd.get();
    return segment;
  }

  Buffer x, y;
  Buffer second, sum;  // Null if the spec has none.
  std::vector<char> gate, scale, shift;
  std::vector<std::int64_t> indexes;
  std::unique_ptr<float[]> scales;
  std::unique_ptr<double[]> mean, rstd;
};

double MillisecondsOf(int calls, const auto& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
             .count() /
         calls;
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const Settings& settings)
      : settings_(settings),
        executor_(settings.threads),
        threads_(executor_.max_threads()),
        arena_(threads_) {}

  std::string Description() const override {
    return "CPU, " + std::to_string(threads_) + " threads, " + cpu::SimdTargetName();
  }

  Status Measure(Case* scaled, Measurement* out) override {
    ScaleTo(MaxTensorBytes(), scaled);
    const Case& c = *scaled;
    Tensors tensors;
    if (Status status = Prepare(c, &tensors); !status.ok()) return status;
    const HostParams params(c, settings_.param_dtype, settings_.seed);
    const Segment segment = tensors.segment(c);
    const auto bytes = static_cast<std::size_t>(c.tensor_bytes());
    char* const y = tensors.y.get();

    // All ones is a NaN in every type, so an element that is not written shows in the error.
    InParallel(bytes, [&](std::size_t begin, std::size_t end) {
      std::memset(y + begin, 0xff, end - begin);
    });
    Status status = executor_.Normalize(c.spec, params.view(), &segment, 1);
    if (!status.ok()) return status;
    out->strategy = cpu::SimdTargetName();
    out->max_error =
        MaxError(c.spec, params.view(), segment, kCheckedElements, &out->checked_elements);
    Time([&] { return executor_.Normalize(c.spec, params.view(), &segment, 1); },
         [&] {
           InParallel(bytes, [&](std::size_t begin, std::size_t end) {
             std::memcpy(y + begin, tensors.x.get() + begin, end - begin);
           });
         },
         static_cast<double>(c.moved_bytes()) / static_cast<double>(2 * c.tensor_bytes()), &status,
         out);
    return status;
  }

  Status MeasureLinear(const LinearCase& c, LinearMeasurement* out) override {
    return MeasureLinearOnCpu(settings_, c, out);
  }

  Status Explain(const Case&, std::string* out) override {
    *out = Description();
    return Status();
  }

 private:
  static Buffer Allocate(std::size_t bytes) {
    constexpr std::size_t kAlignment = 2 << 20;
    return Buffer(static_cast<char*>(
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment)));
  }

  std::int64_t MaxTensorBytes() const {
    if (settings_.max_tensor_bytes > 0) return settings_.max_tensor_bytes;
    return sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) / 6;
  }

  // Calls part(begin, end) on one equal piece per thread.
  void InParallel(std::size_t bytes, const auto& part) {
    const auto pieces = static_cast<std::size_t>(threads_);
    arena_.execute([&] {
      tbb::parallel_for(
          tbb::blocked_range<std::size_t>(0, pieces, 1),
          [&](const auto& range) {
            for (std::size_t i = range.begin(); i < range.end(); ++i) {
              part(bytes * i / pieces, bytes * (i + 1) / pieces);
            }
          },
          tbb::static_partitioner());
    });
  }

  Status Prepare(const Case& c, Tensors* out) {
    const NormSpec& spec = c.spec;
    const auto bytes = static_cast<std::size_t>(c.tensor_bytes());
    for (auto [buffer, wanted] :
         {std::pair(&out->x, true), std::pair(&out->y, true),
          std::pair(&out->second, c.has_second()), std::pair(&out->sum, spec.residual_out)}) {
      if (!wanted) continue;
      *buffer = Allocate(bytes);
      if (*buffer != nullptr) continue;
      return Status(StatusCode::kOutOfMemory,
                    c.name() + ": no memory for a tensor of " + std::to_string(bytes) + " bytes");
    }
    Fill(c, settings_.seed, out->x.get());
    if (out->second != nullptr) Fill(c, settings_.seed + 1000, out->second.get());
    for (auto [values, wanted] :
         {std::pair(&out->gate, spec.gate), std::pair(&out->scale, spec.scale),
          std::pair(&out->shift, spec.shift)}) {
      if (!wanted) continue;
      *values =
          RandomElements(spec.dtype, c.samples * spec.channels, -0.5, 0.5, settings_.seed + 5);
    }
    for (auto [values, wanted] :
         {std::pair(&out->mean, spec.statistics == Statistics::kMeanVariance),
          std::pair(&out->rstd, true)}) {
      if (!c.statistics || !wanted) continue;
      *values = std::make_unique<double[]>(static_cast<std::size_t>(c.rows()));
    }
    if (spec.style == Style::kIndex) {
      for (std::int64_t n = 0; n < c.samples; ++n) out->indexes.push_back(7 * n % spec.styles);
    }
    if (spec.quantization_scale != QuantizationScale::kStatic) {
      // A row, or a block of one, has at least one element.
      out->scales = std::make_unique<float[]>(static_cast<std::size_t>(c.elements()));
    }
    return Status();
  }

  void Fill(const Case& c, std::uint64_t seed, char* x) {
    const std::vector<char> pool = RandomElements(c.spec.dtype, kPoolElements, -1, 2, seed);
    const std::size_t element = SizeOf(c.spec.dtype);
    const std::size_t chunk_bytes = kPoolChunkElements * element;
    const auto bytes = static_cast<std::size_t>(c.tensor_bytes());
    const std::size_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
    InParallel(chunks, [&](std::size_t begin, std::size_t end) {
      for (std::size_t chunk = begin; chunk < end; ++chunk) {
        const auto offset = PoolOffset(static_cast<std::int64_t>(chunk), seed);
        std::memcpy(x + chunk * chunk_bytes,
                    pool.data() + static_cast<std::size_t>(offset) * element,
                    std::min(chunk_bytes, bytes - chunk * chunk_bytes));
      }
    });
  }

  // Times the two in turns until min_seconds have passed; the norm moves `copies` times a copy's
  // bytes.
  void Time(const auto& norm, const auto& copy, double copies, Status* status, Measurement* out) {
    const auto normalize = [&] {
      if (Status result = norm(); !result.ok()) *status = result;
    };
    const double first_ms = std::min(MillisecondsOf(1, normalize), MillisecondsOf(1, copy));
    const int calls = static_cast<int>(std::clamp(kMinSampleMs / first_ms, 1.0, 1000.0));
    std::vector<double> norm_ms, copy_ms, ratios;
    double total_ms = 0;
    while ((total_ms < settings_.min_seconds * 1e3 || out->repetitions < kMinRepetitions) &&
           out->repetitions < kMaxRepetitions) {
      copy_ms.push_back(copies * MillisecondsOf(calls, copy));
      norm_ms.push_back(MillisecondsOf(calls, normalize));
      ratios.push_back(copy_ms.back() / norm_ms.back());
      total_ms += calls * (copy_ms.back() + norm_ms.back());
      ++out->repetitions;
    }
    out->norm_ms = Median(&norm_ms);
    out->copy_ms = Median(&copy_ms);
    out->ratio = Median(&ratios);
  }

  const Settings settings_;
  const cpu::Executor executor_;
  const int threads_;
  tbb::task_arena arena_;
};

}  // namespace

Status MakeCpuDevice(const Settings& settings, std::unique_ptr<Device>* out) {
  *out = std::make_unique<CpuDevice>(settings);
  return Status();
}

}  // namespace normd::norm::bench
