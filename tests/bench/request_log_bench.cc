// What request ids and the request log add to a call: without either, with ids, with a log that
// picks nothing, and for each line that it writes.

#include <benchmark/benchmark.h>

#include <chrono>
#include <map>
#include <string>

#include "server/accept/request_log.h"
#include "server/rpc/call_arrival.h"

namespace normd {
namespace {

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

constexpr char kTraceParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

// gRPC makes the map of a call's metadata when it is first asked for, so that belongs to the cost.
void BM_IdsOfACallWithoutAny(benchmark::State& state) {
  for (auto _ : state) {
    const Metadata metadata = {{"user-agent", "grpc-c++/1.51.1 grpc-c/29.0.0 (linux; chttp2)"}};
    benchmark::DoNotOptimize(ReadRequestIds(metadata));
  }
}
BENCHMARK(BM_IdsOfACallWithoutAny);

void BM_IdsOfACallWithBoth(benchmark::State& state) {
  for (auto _ : state) {
    const Metadata metadata = {{"user-agent", "grpc-c++/1.51.1 grpc-c/29.0.0 (linux; chttp2)"},
                               {"x-request-id", "8f14e45f-ceea-467f-9d3c-1f2b3c4d5e6f"},
                               {"traceparent", kTraceParent}};
    benchmark::DoNotOptimize(ReadRequestIds(metadata));
  }
}
BENCHMARK(BM_IdsOfACallWithBoth);

void BM_PickNothing(benchmark::State& state) {
  static RequestLog log({.slow_threshold = std::chrono::hours(1), .sample_every = 1 << 30},
                        [](const std::string&) {});
  for (auto _ : state) benchmark::DoNotOptimize(log.Pick(std::chrono::microseconds(200)));
}
BENCHMARK(BM_PickNothing)->Threads(1)->Threads(2)->UseRealTime();

void BM_Write(benchmark::State& state) {
  RequestLog log({}, [](const std::string& line) { benchmark::DoNotOptimize(line.size()); });
  RequestIds ids;
  ids.request_id = "8f14e45f-ceea-467f-9d3c-1f2b3c4d5e6f";
  ids.traceparent = kTraceParent;
  const StageTimes stages;
  const BatchInfo batch{7, 3, 3072, "cpu:0"};
  for (auto _ : state) {
    log.Write(RequestLog::Reason::kSample,
              {"Normalize", ids, "instance_norm_64", 1, absl::OkStatus(),
               std::chrono::microseconds(200), stages, batch, "ipv4:127.0.0.1:41858", "", 1024});
  }
}
BENCHMARK(BM_Write);

}  // namespace
}  // namespace normd

BENCHMARK_MAIN();
