// What recording costs a request: the server's metrics beside prometheus-cpp's, which takes a mutex
// in Histogram::Observe. Run with --benchmark_repetitions=5 on a quiet machine.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "server/metrics/histogram.h"
#include "server/metrics/metrics.h"
#include "server/metrics/sharded_cells.h"

namespace normd {
namespace {

// Durations over all buckets, in an order that a branch predictor does not learn at once.
class Durations {
 public:
  std::int64_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return std::int64_t{10'000} << (state_ >> 60);
  }

 private:
  std::uint64_t state_ = 1;
};

Histogram& SharedHistogram() {
  static Histogram histogram(DurationScale());
  return histogram;
}

prometheus::Histogram& PrometheusHistogram() {
  static prometheus::Histogram histogram([] {
    prometheus::Histogram::BucketBoundaries bounds;
    for (const std::int64_t bound : DurationScale().bounds) {
      bounds.push_back(static_cast<double>(bound) / 1e9);
    }
    return bounds;
  }());
  return histogram;
}

void BM_HistogramRecord(benchmark::State& state) {
  Histogram& histogram = SharedHistogram();
  Durations durations;
  for (auto _ : state) histogram.Record(durations.Next());
}
BENCHMARK(BM_HistogramRecord)->Threads(1)->Threads(2)->UseRealTime();

void BM_PrometheusHistogramObserve(benchmark::State& state) {
  prometheus::Histogram& histogram = PrometheusHistogram();
  Durations durations;
  for (auto _ : state) histogram.Observe(static_cast<double>(durations.Next()) / 1e9);
}
BENCHMARK(BM_PrometheusHistogramObserve)->Threads(1)->Threads(2)->UseRealTime();

void BM_CounterAdd(benchmark::State& state) {
  static ShardedCells cells(1);
  for (auto _ : state) cells.Add(0, 1);
}
BENCHMARK(BM_CounterAdd)->Threads(1)->Threads(2)->UseRealTime();

void BM_PrometheusCounterIncrement(benchmark::State& state) {
  static prometheus::Counter counter;
  for (auto _ : state) counter.Increment();
}
BENCHMARK(BM_PrometheusCounterIncrement)->Threads(1)->Threads(2)->UseRealTime();

// Everything that one served Normalize records.
void Serve(Metrics& metrics, ModelMetrics& model) {
  StageTimes stages;
  for (const Stage stage :
       {Stage::kDecode, Stage::kQueue, Stage::kGather, Stage::kCompute, Stage::kEncode}) {
    stages[stage] = std::chrono::microseconds(30);
  }
  metrics.AddInflightBytes(1024);
  model.AddQueued(1);
  model.AddQueued(-1);
  model.RecordBatch(1, 1024);
  model.RecordStages(stages);
  metrics.AddPayload(1024, 1024);
  model.RecordRequest(Method::kNormalize, absl::StatusCode::kOk, std::chrono::microseconds(200));
  metrics.AddInflightBytes(-1024);
}

void BM_WholeRequest(benchmark::State& state) {
  static const std::unique_ptr<Metrics> metrics = CreateMetrics({});
  static const std::shared_ptr<ModelMetrics> handle = metrics->ForModel("m", 1);
  ModelMetrics& model = *handle;
  for (auto _ : state) Serve(*metrics, model);
}
BENCHMARK(BM_WholeRequest)->Threads(1)->Threads(2)->UseRealTime();

void BM_Scrape(benchmark::State& state) {
  const std::unique_ptr<Metrics> metrics = CreateMetrics({});
  std::vector<std::shared_ptr<ModelMetrics>> models;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    models.push_back(metrics->ForModel(std::to_string(i), 1));
    Serve(*metrics, *models.back());
  }
  for (auto _ : state) benchmark::DoNotOptimize(metrics->Scrape());
}
BENCHMARK(BM_Scrape)->Arg(7)->Arg(1000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace normd

BENCHMARK_MAIN();
