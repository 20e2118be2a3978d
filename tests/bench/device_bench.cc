// The exec stage on a GPU without gRPC: requests are fed from memory and their results dropped. The
// limit is the link: pinned copies in both directions at once, measured in the same run.
//
//   device_bench [--lanes=4,8] [--devices=1] [--sizes=65536,1048576,...] [--seconds=2]
//                [--idle=true] [--small=true]
//
// GB/s count bytes in and bytes out. "of link" is their ratio to the simultaneous copies.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "server/batching/batch_queue.h"
#include "server/exec/cuda/cuda_device.h"
#include "server/exec/device/device_backend.h"
#include "server/exec/executor.h"
#include "server/metrics/metrics.h"
#include "server/model/model.h"
#include "tests/bench/link_probe.h"
#include "tests/bench/measure.h"
#include "tests/bench/small_batches.h"

ABSL_FLAG(std::string, lanes, absl::StrCat(normd::BackendOptions().device_lanes),
          "lanes of each device, a list");
ABSL_FLAG(int, devices, 0, "how many devices; 0: all");
ABSL_FLAG(bool, idle, false, "measures one small request by itself, too");
ABSL_FLAG(bool, small, false, "compares the ways of a small batch, too");
ABSL_FLAG(std::string, sizes, "65536,262144,1048576,4194304,16777216,67108864",
          "bytes of one request, a list");
ABSL_FLAG(double, seconds, 2, "of each line");

namespace normd {
namespace {

// In the queue or in a lane at once.
constexpr std::int64_t kOutstanding = 64;
constexpr std::int64_t kOutstandingBytes = std::int64_t{1} << 30;

using Seconds = std::chrono::duration<double>;

std::vector<std::int64_t> Numbers(const std::string& list) {
  std::vector<std::int64_t> numbers;
  for (const auto part : absl::StrSplit(list, ',')) {
    std::int64_t number = 0;
    if (absl::SimpleAtoi(part, &number) && number > 0) numbers.push_back(number);
  }
  return numbers;
}

// Keeps `outstanding` requests in the queue, each sent anew when it ends.
class Feeder {
 public:
  Feeder(BatchQueue& queue, const Clock& clock, std::shared_ptr<const Model> model,
         std::int64_t bytes, int outstanding)
      : queue_(queue), clock_(clock), model_(std::move(model)) {
    const std::int64_t elements = bytes / static_cast<std::int64_t>(sizeof(float));
    geometry_ = *model_->Check(norm::DType::kFloat32, *Shape::Create({1, 64, elements / 64}));
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(0, 1);
    std::vector<float> source(static_cast<std::size_t>(elements));
    for (float& value : source) value = uniform(random);
    sources_.assign(static_cast<std::size_t>(outstanding), source);
  }

  // The number of requests that ended within `duration`, and how long that really was. Returns when
  // all have ended, also after one that failed; see failed().
  std::pair<std::int64_t, double> Run(Seconds duration) {
    ended_ = 0;
    stop_ = failed();
    running_ = static_cast<int>(sources_.size());
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < sources_.size(); ++i) Send(i);
    std::this_thread::sleep_for(duration);
    const std::int64_t ended = ended_;
    const Seconds took = std::chrono::steady_clock::now() - begin;
    stop_ = true;
    while (running_ > 0) std::this_thread::yield();
    return {ended, took.count()};
  }

  std::int64_t bytes() const { return geometry_.OutputBytes(); }
  bool failed() const { return failed_; }

 private:
  void Fail(const absl::Status& status) {
    if (!failed_.exchange(true)) {
      std::fprintf(stderr, "device_bench: %s\n", status.ToString().c_str());
    }
    stop_ = true;
  }

  void Send(std::size_t index) {
    auto request = std::make_unique<Request>();
    request->id = ++next_id_;
    request->model = model_;
    request->dtype = norm::DType::kFloat32;
    request->geometry = geometry_;
    request->inputs.emplace_back().views.emplace_back(
        reinterpret_cast<const std::byte*>(sources_[index].data()),
        static_cast<std::size_t>(geometry_.OutputBytes()));
    request->arrival = clock_.Now();
    request->done = [this, index](Completion completion) {
      if (!completion.status.ok()) Fail(completion.status);
      ++ended_;
      if (stop_) {
        --running_;
      } else {
        Send(index);
      }
    };
    if (absl::Status status = queue_.Push(request); !status.ok()) {
      Fail(status);
      --running_;
    }
  }

  BatchQueue& queue_;
  const Clock& clock_;
  const std::shared_ptr<const Model> model_;
  Geometry geometry_;
  std::vector<std::vector<float>> sources_;
  std::atomic<std::uint64_t> next_id_{0};
  std::atomic<std::int64_t> ended_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
};

// The exec stage on the first devices, with a model.
struct ExecStage {
  ExecStage(const DeviceBackendOptions& options, int device_count) {
    std::vector<std::unique_ptr<Device>> devices;
    for (int i = 0; i < device_count; ++i) devices.push_back(ValueOrExit(OpenCudaDevice(i)));
    backend = ValueOrExit(DeviceBackend::Create(std::move(devices), options, metrics, clock));
    v1::ModelConfig config;
    config.mutable_instance_norm()->set_channels(64);
    model = ValueOrExit(Model::Create("bench", 1, config, {}, metrics.ForModel("bench", 1)));
    model->set_backend_state(ValueOrExit(backend->Prepare(*model)));
  }

  const SteadyClock clock;
  Metrics metrics{{"bench", ""}};
  std::unique_ptr<DeviceBackend> backend;
  std::shared_ptr<Model> model;
};

// One request after the other on an inline lane, at once or each after a pause in which the
// processor sleeps: medians in microseconds.
void MeasureIdle() {
  constexpr int kRequests = 400;
  DeviceBackendOptions options;
  options.lanes_per_device = 1;
  options.inline_lanes_per_device = 1;
  options.inline_bytes = std::size_t{256} << 10;
  const ExecStage stage(options, 1);
  const auto lanes = stage.backend->MakeInlineLanes();
  std::printf("one request at a time, medians in us:\n%10s %8s %8s %8s %8s\n", "bytes", "pause",
              "gather", "compute", "all");
  for (const std::int64_t bytes : {1 << 10, 64 << 10, 256 << 10}) {
    const std::int64_t elements = bytes / static_cast<std::int64_t>(sizeof(float));
    const Geometry geometry =
        *stage.model->Check(norm::DType::kFloat32, *Shape::Create({1, 64, elements / 64}));
    const std::vector<float> source(static_cast<std::size_t>(elements), 1.5f);
    for (const int pause_us : {0, 100, 300, 1000}) {
      std::vector<double> gather, compute, all;
      for (int i = 0; i < kRequests; ++i) {
        if (pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
        auto batch = std::make_unique<Batch>();
        batch->model = stage.model;
        auto request = std::make_unique<Request>();
        request->model = stage.model;
        request->geometry = geometry;
        request->inputs.emplace_back().views.emplace_back(
            reinterpret_cast<const std::byte*>(source.data()), static_cast<std::size_t>(bytes));
        request->done = [&](Completion completion) {
          gather.push_back(1e-3 * static_cast<double>(completion.stages[Stage::kGather].count()));
          compute.push_back(1e-3 * static_cast<double>(completion.stages[Stage::kCompute].count()));
        };
        batch->requests.push_back(std::move(request));
        const TimePoint begin = stage.clock.Now();
        if (!lanes.front()->Execute(std::move(batch)).ok()) std::exit(1);
        all.push_back(1e-3 * static_cast<double>((stage.clock.Now() - begin).count()));
      }
      std::printf("%10lld %8d", static_cast<long long>(bytes), pause_us);
      for (const auto& times : {gather, compute, all}) std::printf(" %8.1f", Median(times));
      std::printf("\n");
    }
  }
}

// One line for each size, over lanes like these on every device. False after a request that failed.
bool MeasureLanes(const DeviceBackendOptions& options, int device_count, double link) {
  const ExecStage stage(options, device_count);
  BatchQueue queue(BatchQueueOptions(), stage.clock);
  Executor executor(stage.backend->MakeLanes(), queue, {}, kDeviceSmallLanes);
  executor.Start([&queue](const absl::Status& error) {
    queue.Close();
    queue.Abort(error);
  });
  bool ok = true;
  for (const std::int64_t size : Numbers(absl::GetFlag(FLAGS_sizes))) {
    const auto outstanding = static_cast<int>(
        std::min(kOutstanding, std::max<std::int64_t>(kOutstandingBytes / size, 2)));
    Feeder feeder(queue, stage.clock, stage.model, size, outstanding);
    feeder.Run(Seconds(0.3));
    const auto [ended, seconds] = feeder.Run(Seconds(absl::GetFlag(FLAGS_seconds)));
    if (feeder.failed()) {
      ok = false;
      break;
    }
    const double rate = static_cast<double>(ended) / seconds;
    const double gigabytes = 2.0 * rate * static_cast<double>(feeder.bytes()) / 1e9;
    std::printf("%6d %12lld %12d %10.0f %10.2f %10.3f\n", options.lanes_per_device,
                static_cast<long long>(feeder.bytes()), outstanding, rate, gigabytes,
                gigabytes / link);
    std::fflush(stdout);
  }
  queue.Close();
  executor.Join();
  return ok;
}

int Run() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("device_bench: no CUDA device is here; nothing measured");
    return 0;
  }
  if (const int wanted = absl::GetFlag(FLAGS_devices); wanted > 0) {
    devices = std::min(devices, wanted);
  }
  const double link = LinkProbe(devices).Measure();
  std::printf("pinned copies both ways, %d device(s): %.1f GB/s\n", devices, link);
  if (absl::GetFlag(FLAGS_small)) PrintSmallBatches();
  if (absl::GetFlag(FLAGS_idle)) MeasureIdle();
  std::printf("%6s %12s %12s %10s %10s %10s\n", "lanes", "bytes", "outstanding", "req/s", "GB/s",
              "of link");
  for (const std::int64_t lanes : Numbers(absl::GetFlag(FLAGS_lanes))) {
    DeviceBackendOptions options;
    options.lanes_per_device = static_cast<int>(lanes);
    options.pool_bytes = std::size_t{1} << 30;
    options.lane = LaneOptionsFor(static_cast<std::size_t>(devices));
    if (!MeasureLanes(options, devices, link)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return normd::Run();
}
