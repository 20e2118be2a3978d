// What a request costs between the front end and its response, without gRPC: the queue's
// operations, and the CPU lane's bytes per second beside a copy of the same bytes in the same run.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/buffer_pool.h"
#include "benchmark/benchmark.h"
#include "server/batching/batch_queue.h"
#include "server/exec/backends.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/models.h"

namespace normd {
namespace {

using benchmark::State;

constexpr std::int64_t kRowBytes = 4096;

struct Server {
  explicit Server(const std::string& batching = "", const BatchQueueOptions& options = {})
      : model(MakeModel(
            "rms",
            "rms_norm { normalized_shape: [1024] affine: false } batching { " + batching + " }",
            metrics.no_model)),
        queue(options, clock) {}
  ~Server() {
    queue.Close();
    queue.Abort(absl::UnavailableError("end"));
  }

  SteadyClock clock;
  CountingMetrics metrics;
  std::shared_ptr<const Model> model;
  BatchQueue queue;
};

// A request of whole rows with `pieces` of input, whose end is counted.
std::unique_ptr<Request> MakeRequest(const Server& server, std::uint64_t id, std::int64_t bytes,
                                     const std::vector<ConstBytes>& input) {
  auto request = std::make_unique<Request>();
  request->id = id;
  request->model = server.model;
  request->geometry = {bytes / kRowBytes, 1, bytes / kRowBytes, {}, {{bytes}}, {{bytes}}};
  request->inputs.emplace_back().views.assign(input.begin(), input.end());
  request->deadline = server.clock.Now() + std::chrono::seconds(100);
  request->done = [](Completion completion) {
    benchmark::DoNotOptimize(completion.outputs[0].data());
  };
  return request;
}

// Push and take of one request while `range(0)` others of the same model wait in front of it or
// behind it: the cost must not grow with the queue.
void BM_PushTake(State& state) {
  const std::int64_t waiting = state.range(0);
  BatchQueueOptions options;
  options.max_queue_requests = waiting + 1;
  options.limits.max_rows = 1;
  Server server("", options);
  std::uint64_t id = 1;
  const auto push = [&] {
    auto request = MakeRequest(server, id++, kRowBytes, {});
    if (!server.queue.Push(request).ok()) state.SkipWithError("refused");
  };
  for (std::int64_t i = 0; i < waiting; ++i) push();
  for (auto _ : state) {
    push();
    BatchQueue::Poll poll = server.queue.TryTake();
    for (auto& request : poll.batch->requests) Complete(std::move(request), Buffer(), {});
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_PushTake)->Arg(0)->Arg(100)->Arg(10000)->Arg(100000);

// Push of `range(0)` requests and one take of them all.
void BM_PushManyTakeOne(State& state) {
  const std::int64_t count = state.range(0);
  BatchQueueOptions options;
  options.max_queue_requests = count;
  Server server("", options);
  std::uint64_t id = 1;
  for (auto _ : state) {
    for (std::int64_t i = 0; i < count; ++i) {
      auto request = MakeRequest(server, id++, kRowBytes, {});
      if (!server.queue.Push(request).ok()) state.SkipWithError("refused");
    }
    BatchQueue::Poll poll = server.queue.TryTake();
    for (auto& request : poll.batch->requests) Complete(std::move(request), Buffer(), {});
  }
  state.SetItemsProcessed(state.iterations() * count);
}
BENCHMARK(BM_PushManyTakeOne)->Arg(16)->Arg(1024);

// Cancelling from the middle of a queue of `range(0)`.
void BM_PushCancel(State& state) {
  const std::int64_t waiting = state.range(0);
  BatchQueueOptions options;
  options.max_queue_requests = waiting + 1;
  Server server("", options);
  std::uint64_t id = 1;
  for (std::int64_t i = 0; i < waiting; ++i) {
    auto request = MakeRequest(server, id++, kRowBytes, {});
    if (!server.queue.Push(request).ok()) state.SkipWithError("refused");
  }
  for (auto _ : state) {
    auto request = MakeRequest(server, id, kRowBytes, {});
    if (!server.queue.Push(request).ok()) state.SkipWithError("refused");
    server.queue.Cancel(id++);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_PushCancel)->Arg(0)->Arg(10000);

// The request alone: what of the above is its own allocation and end.
void BM_RequestAlone(State& state) {
  Server server;
  for (auto _ : state) Complete(MakeRequest(server, 1, kRowBytes, {}), Buffer(), {});
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_RequestAlone);

void BM_PoolTake(State& state) {
  BufferPool pool(std::int64_t{1} << 30);
  for (auto _ : state) benchmark::DoNotOptimize(pool.Take(state.range(0))->data());
}
BENCHMARK(BM_PoolTake)->Arg(1024)->Arg(1 << 20)->Threads(1)->Threads(2);

// Inputs of one request each, in a ring large enough that they come from memory and not from the
// caches when `bytes` is large; `piece` bytes to a slice, each at an odd address when `odd`.
class Inputs {
 public:
  Inputs(std::int64_t bytes, std::int64_t piece, bool odd)
      : memory_(static_cast<std::size_t>(kCount * (bytes + 64) + 64)) {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::byte(i % 61);
    std::byte* at = memory_.data();
    at += -reinterpret_cast<std::uintptr_t>(at) % 64 + (odd ? 1 : 0);
    for (auto& views : views_) {
      for (std::int64_t left = bytes; left > 0; left -= piece) {
        views.emplace_back(at, static_cast<std::size_t>(std::min(left, piece)));
        at += views.back().size();
      }
      at += 64 - bytes % 64;
    }
  }
  const std::vector<ConstBytes>& Next() { return views_[next_++ % kCount]; }

 private:
  static constexpr std::int64_t kCount = 4;
  std::vector<std::byte> memory_;
  std::array<std::vector<ConstBytes>, kCount> views_;
  std::size_t next_ = 0;
};

enum Input { kInPlace = 0, kSlices = 1 };

// Batches of `range(1)` requests of `range(0)` bytes through the CPU lane, with inputs that are
// computed from where they are, or that come in slices of 16 KiB at odd addresses and are gathered.
void BM_CpuLane(State& state) {
  const std::int64_t bytes = state.range(0);
  const std::int64_t count = state.range(1);
  Server server;
  auto backend = CreateBackend({.device = "cpu"}, server.metrics, server.clock);
  if (!backend.ok()) return state.SkipWithError("no backend");
  const auto lanes = (*backend)->MakeLanes();
  // The model goes with the server, after its backend: what that has made of it goes here.
  Model& model = const_cast<Model&>(*server.model);
  model.set_backend_state(*(*backend)->Prepare(model));
  const absl::Cleanup forget = [&model] { model.set_backend_state(nullptr); };
  Inputs inputs = state.range(2) == kInPlace ? Inputs(bytes, bytes, false)
                                             : Inputs(bytes, std::int64_t{16} << 10, true);
  for (auto _ : state) {
    auto batch = std::make_unique<Batch>();
    batch->model = server.model;
    for (std::int64_t i = 0; i < count; ++i) {
      batch->requests.push_back(MakeRequest(server, 1, bytes, inputs.Next()));
    }
    if (!lanes[0]->Execute(std::move(batch)).ok()) state.SkipWithError("failed");
  }
  state.SetBytesProcessed(state.iterations() * count * bytes);
  state.SetItemsProcessed(state.iterations() * count);
}
BENCHMARK(BM_CpuLane)
    ->ArgNames({"bytes", "requests", "sliced"})
    ->ArgsProduct({{4 << 10, 256 << 10, 1 << 20, 16 << 20}, {1}, {kInPlace, kSlices}})
    ->Args({4 << 10, 64, kInPlace})
    ->Args({4 << 10, 64, kSlices})
    ->Args({256 << 10, 64, kInPlace})
    ->Args({256 << 10, 64, kSlices})
    ->UseRealTime();

// The limit: a memcpy of the same bytes into recycled memory, on one thread and on all.
void BM_Copy(State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto threads = static_cast<std::size_t>(state.range(1));
  Inputs inputs(state.range(0), state.range(0), false);
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    const std::byte* from = inputs.Next()[0].data();
    const std::size_t part = bytes / threads;
    std::vector<std::thread> helpers;
    for (std::size_t i = 1; i < threads; ++i) {
      helpers.emplace_back([&, i] { std::memcpy(&to[i * part], from + i * part, part); });
    }
    std::memcpy(to.data(), from, part);
    for (std::thread& helper : helpers) helper.join();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Copy)
    ->ArgNames({"bytes", "threads"})
    ->ArgsProduct({{4 << 10, 256 << 10, 1 << 20, 16 << 20}, {1}})
    ->Args({16 << 20, 2})
    ->UseRealTime();

}  // namespace
}  // namespace normd

BENCHMARK_MAIN();
