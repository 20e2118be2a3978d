#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "kernels/bench/cpu_linear.h"
#include "kernels/bench/data.h"
#include "kernels/cpu/linear_norm.h"
#include "kernels/cpu/linear_product.h"
#include "kernels/cpu/normalize.h"
#include "kernels/reference.h"

namespace normd::norm::bench {
namespace {

constexpr int kMinRepetitions = 7;
constexpr int kMaxRepetitions = 2000;
// Threads spin for some milliseconds after a call: OpenMP's after a product longer than ours after
// a layer. Without a rest they would occupy the other's cores.
constexpr auto kRest = std::chrono::milliseconds(15);
constexpr double kMinSampleMs = 20;  // Shorter calls are repeated within one sample.
// The reference takes some nanoseconds for each product.
constexpr double kCheckedProducts = 2e8;

// Buffers begin at a cache line, for the bare product as for the layer.
struct alignas(64) CacheLine {
  char bytes[64];
};
std::vector<CacheLine> Aligned(const std::vector<char>& bytes) {
  std::vector<CacheLine> lines((bytes.size() + sizeof(CacheLine) - 1) / sizeof(CacheLine));
  if (!bytes.empty()) std::memcpy(lines.data(), bytes.data(), bytes.size());
  return lines;
}

double MillisecondsOf(int calls, const auto& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
             .count() /
         calls;
}

// Checks samples at even distances, including the first and the last.
Status Check(const LinearNormSpec& spec, const LinearNormParams& params,
             const LinearNormSegment& all, LinearMeasurement* out) {
  const auto size = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const double products =
      static_cast<double>(spec.in_features) * static_cast<double>(spec.out_features);
  const std::int64_t most =
      std::max<std::int64_t>(2, static_cast<std::int64_t>(kCheckedProducts / products));
  const std::int64_t count = std::min(all.samples, most);
  std::vector<double> expected(static_cast<std::size_t>(spec.out_features));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t sample = count == 1 ? 0 : i * (all.samples - 1) / (count - 1);
    const std::int64_t offset = sample * spec.out_features * size;
    const void* result = static_cast<const char*>(all.out) + offset;
    const Status status =
        LinearNormReference(spec, params,
                            {static_cast<const char*>(all.x) + sample * spec.in_features * size,
                             static_cast<const char*>(all.y) + offset, nullptr, 1},
                            expected.data());
    if (!status.ok()) return status;
    for (std::int64_t f = 0; f < spec.out_features; ++f) {
      const double want = expected[static_cast<std::size_t>(f)];
      const double got = LoadElement(spec.dtype, result, f);
      const double error = std::fabs(got - want) / std::max(1.0, std::fabs(want));
      // A NaN is never the right answer to these inputs.
      out->max_error = std::isnan(error) ? std::numeric_limits<double>::infinity()
                                         : std::max(out->max_error, error);
    }
    ++out->checked_samples;
  }
  return Status();
}

// A layer's inputs and parameters, in memory that this holds.
struct LayerData {
  LayerData(const Settings& settings, const LinearCase& c) {
    spec.in_features = c.in_features;
    spec.out_features = c.out_features;
    spec.dtype = c.dtype;
    spec.precision = c.precision;
    spec.epilogue.add = spec.epilogue.multiply = true;
    const std::int64_t results = c.samples * c.out_features;
    const double bound = 1 / std::sqrt(static_cast<double>(c.in_features));
    const auto random = [&](DType dtype, std::int64_t count, double limit, std::uint64_t seed) {
      return Aligned(RandomElements(dtype, count, -limit, limit, settings.seed + seed));
    };
    weight = random(DType::kFloat32, c.in_features * c.out_features, bound, 0);
    bias = random(DType::kFloat32, c.out_features, bound, 1);
    x = random(c.dtype, c.samples * c.in_features, 1, 2);
    float_x = random(DType::kFloat32, c.samples * c.in_features, 1, 2);
    y = random(c.dtype, results, 1, 3);
    // All ones is a NaN in every type, so an element that is not written shows in the error.
    out = Aligned(std::vector<char>(static_cast<std::size_t>(results) * SizeOf(c.dtype),
                                    static_cast<char>(0xff)));
    z.resize(static_cast<std::size_t>(results) * sizeof(float) / sizeof(CacheLine) + 1);
    params.weight = {weight.data(), DType::kFloat32};
    params.bias = {bias.data(), DType::kFloat32};
    segment = {x.data(), y.data(), out.data(), c.samples};
  }
  LayerData(const LayerData&) = delete;
  LayerData& operator=(const LayerData&) = delete;

  LinearNormSpec spec;
  std::vector<CacheLine> weight, bias, x, y, out;
  std::vector<CacheLine> float_x, z;  // The memory of the bare product.
  LinearNormParams params;
  LinearNormSegment segment;
};

// Calls both in turns, until the settings' time is over, and takes the medians.
void MeasureInTurns(const Settings& settings, int threads, const auto& run_layer,
                    const auto& run_product, LinearMeasurement* out) {
  // The time of one call, after waking the threads that slept during the other one's turn.
  const auto turn = [&](int calls, const auto& call) {
    if (threads > 1) {
      std::this_thread::sleep_for(kRest);
      call();
    }
    return MillisecondsOf(calls, call);
  };
  run_product();
  const double first_ms = std::min(turn(1, run_layer), turn(1, run_product));
  const int calls = static_cast<int>(std::clamp(kMinSampleMs / first_ms, 1.0, 1000.0));
  std::vector<double> layer_ms, product_ms, ratios;
  double total_ms = 0;
  while ((total_ms < settings.min_seconds * 1e3 || out->repetitions < kMinRepetitions) &&
         out->repetitions < kMaxRepetitions) {
    product_ms.push_back(turn(calls, run_product));
    layer_ms.push_back(turn(calls, run_layer));
    ratios.push_back(product_ms.back() / layer_ms.back());
    total_ms += calls * (product_ms.back() + layer_ms.back());
    ++out->repetitions;
  }
  out->layer_ms = Median(&layer_ms);
  out->product_ms = Median(&product_ms);
  out->ratio = Median(&ratios);
}

}  // namespace

Status MeasureLinearOnCpu(const Settings& settings, const LinearCase& c, LinearMeasurement* out) {
  LayerData data(settings, c);
  const cpu::Executor executor(settings.threads);
  std::unique_ptr<cpu::LinearNorm> layer;
  Status status = cpu::LinearNorm::Create(executor, data.spec, data.params, &layer);
  if (status.ok()) status = layer->Compute(c.dtype, &data.segment, 1);
  if (status.ok()) status = Check(data.spec, data.params, data.segment, out);
  if (!status.ok()) return status;

  std::unique_ptr<cpu::BareProduct> product;
  status = cpu::BareProduct::Create(c.samples, c.in_features, c.out_features,
                                    reinterpret_cast<const float*>(data.weight.data()), &product);
  if (!status.ok()) return status;
  const auto run_layer = [&] {
    if (Status s = layer->Compute(c.dtype, &data.segment, 1); !s.ok()) status = s;
  };
  const auto run_product = [&] {
    const auto* from = reinterpret_cast<const float*>(data.float_x.data());
    auto* to = reinterpret_cast<float*>(data.z.data());
    if (Status s = product->Multiply(from, to, executor.max_threads()); !s.ok()) status = s;
  };
  MeasureInTurns(settings, executor.max_threads(), run_layer, run_product, out);
  out->strategy = cpu::SimdTargetName();
  return status;
}

}  // namespace normd::norm::bench
