// The exec stage on a GPU without gRPC: requests are fed from memory and their results dropped. The
// limit is the link: pinned copies in both directions at once, measured in the same run.
//
//   device_bench [--lanes=4,8] [--chunks=2097152] [--sizes=65536,1048576,...] [--seconds=2]
//                [--outstanding=64]
//
// GB/s count bytes in and bytes out. "of link" is their ratio to the simultaneous copies.

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/base/clock.h"
#include "server/batching/batch_queue.h"
#include "server/exec/cuda/cuda_device.h"
#include "server/exec/device/device_backend.h"
#include "server/exec/executor.h"
#include "server/metrics/metrics.h"
#include "server/model/model.h"

ABSL_FLAG(std::string, lanes, "4,8", "lanes of each device, a list");
ABSL_FLAG(std::string, chunks, "2097152", "bytes of a staging chunk, a list");
ABSL_FLAG(std::int64_t, mapped_bytes, 256 << 10, "a batch up to this goes through the link");
ABSL_FLAG(std::string, sizes, "65536,262144,1048576,4194304,16777216,67108864",
          "bytes of one request, a list");
ABSL_FLAG(double, seconds, 2, "of each line");
ABSL_FLAG(int, outstanding, 64, "requests in the queue or in a lane at once");
ABSL_FLAG(std::int64_t, max_outstanding_bytes, std::int64_t{1} << 30, "likewise, bytes");

namespace normd {
namespace {

using Seconds = std::chrono::duration<double>;

std::vector<std::int64_t> Numbers(const std::string& list) {
  std::vector<std::int64_t> numbers;
  for (const auto part : absl::StrSplit(list, ',')) {
    std::int64_t number = 0;
    if (absl::SimpleAtoi(part, &number) && number > 0) numbers.push_back(number);
  }
  return numbers;
}

// GB/s of pinned copies both ways at once on every device, in and out added up.
double LinkGigabytesPerSecond(int devices) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr int kRounds = 20;
  struct Link {
    void* host_in = nullptr;
    void* host_out = nullptr;
    void* device_in = nullptr;
    void* device_out = nullptr;
    cudaStream_t in = nullptr;
    cudaStream_t out = nullptr;
  };
  std::vector<Link> links(static_cast<std::size_t>(devices));
  const auto check = [](cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "device_bench: %s\n", cudaGetErrorString(error));
    std::exit(1);
  };
  for (int i = 0; i < devices; ++i) {
    Link& link = links[static_cast<std::size_t>(i)];
    check(cudaSetDevice(i));
    check(cudaHostAlloc(&link.host_in, kBytes, cudaHostAllocDefault));
    check(cudaHostAlloc(&link.host_out, kBytes, cudaHostAllocDefault));
    check(cudaMalloc(&link.device_in, kBytes));
    check(cudaMalloc(&link.device_out, kBytes));
    check(cudaStreamCreateWithFlags(&link.in, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&link.out, cudaStreamNonBlocking));
    std::memset(link.host_in, 1, kBytes);
  }
  const auto round = [&](int rounds) {
    for (int r = 0; r < rounds; ++r) {
      for (Link& link : links) {
        check(
            cudaMemcpyAsync(link.device_in, link.host_in, kBytes, cudaMemcpyHostToDevice, link.in));
        check(cudaMemcpyAsync(link.host_out, link.device_out, kBytes, cudaMemcpyDeviceToHost,
                              link.out));
      }
    }
    for (Link& link : links) {
      check(cudaStreamSynchronize(link.in));
      check(cudaStreamSynchronize(link.out));
    }
  };
  round(2);
  const auto begin = std::chrono::steady_clock::now();
  round(kRounds);
  const Seconds took = std::chrono::steady_clock::now() - begin;
  for (Link& link : links) {
    check(cudaFreeHost(link.host_in));
    check(cudaFreeHost(link.host_out));
    check(cudaFree(link.device_in));
    check(cudaFree(link.device_out));
    check(cudaStreamDestroy(link.in));
    check(cudaStreamDestroy(link.out));
  }
  return 2.0 * kRounds * kBytes * devices / took.count() / 1e9;
}

// GB/s of a plain memcpy on `threads` threads, read and write counted once each: what gathering can
// reach at most.
double HostCopyGigabytesPerSecond(int threads) {
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  constexpr int kRounds = 10;
  std::vector<std::vector<char>> from(static_cast<std::size_t>(threads),
                                      std::vector<char>(kBytes, 1));
  std::vector<std::vector<char>> to(static_cast<std::size_t>(threads),
                                    std::vector<char>(kBytes, 2));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < from.size(); ++t) {
    running.emplace_back([&, t] {
      for (int r = 0; r < kRounds; ++r) std::memcpy(to[t].data(), from[t].data(), kBytes);
    });
  }
  for (std::thread& thread : running) thread.join();
  const Seconds took = std::chrono::steady_clock::now() - begin;
  return 2.0 * kRounds * kBytes * threads / took.count() / 1e9;
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
    for (int i = 0; i < outstanding; ++i) {
      std::vector<float> source(static_cast<std::size_t>(elements));
      for (float& value : source) value = uniform(random);
      sources_.push_back(std::move(source));
    }
  }

  // The number of requests that ended within `duration`, and how long that really was.
  std::pair<std::int64_t, double> Run(Seconds duration) {
    ended_ = 0;
    stop_ = false;
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

  std::int64_t bytes() const { return geometry_.bytes; }

 private:
  void Send(std::size_t index) {
    auto request = std::make_unique<Request>();
    request->id = ++next_id_;
    request->model = model_;
    request->dtype = norm::DType::kFloat32;
    request->geometry = geometry_;
    request->inputs.emplace_back().emplace_back(
        reinterpret_cast<const std::byte*>(sources_[index].data()),
        static_cast<std::size_t>(geometry_.bytes));
    request->arrival = clock_.Now();
    request->done = [this, index](Completion completion) {
      if (!completion.status.ok()) {
        std::fprintf(stderr, "device_bench: %s\n", completion.status.ToString().c_str());
        std::exit(1);
      }
      ++ended_;
      if (stop_) {
        --running_;
      } else {
        Send(index);
      }
    };
    if (absl::Status status = queue_.Push(request); !status.ok()) {
      std::fprintf(stderr, "device_bench: %s\n", status.ToString().c_str());
      std::exit(1);
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
};

template <typename T>
T ValueOrExit(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "device_bench: %s\n", value.status().ToString().c_str());
  std::exit(1);
}

// One line for each size, over lanes like these on every device.
void MeasureLanes(const DeviceBackendOptions& options, int device_count, double link) {
  const SteadyClock clock;
  const std::unique_ptr<Metrics> metrics = CreateMetrics({"bench", ""});
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < device_count; ++i) devices.push_back(ValueOrExit(OpenCudaDevice(i)));
  const auto backend =
      ValueOrExit(DeviceBackend::Create(std::move(devices), options, *metrics, clock));
  v1::ModelConfig config;
  config.mutable_instance_norm()->set_channels(64);
  std::shared_ptr<Model> model =
      ValueOrExit(Model::Create("bench", 1, config, {}, metrics->ForModel("bench", 1)));
  model->set_backend_state(ValueOrExit(backend->Prepare(*model)));
  BatchQueue queue(BatchQueueOptions(), clock);
  Executor executor(backend->MakeLanes(), queue);
  executor.Start([](const absl::Status&) { std::exit(1); });
  for (const std::int64_t size : Numbers(absl::GetFlag(FLAGS_sizes))) {
    const int outstanding = static_cast<int>(std::min<std::int64_t>(
        absl::GetFlag(FLAGS_outstanding),
        std::max<std::int64_t>(absl::GetFlag(FLAGS_max_outstanding_bytes) / size, 2)));
    Feeder feeder(queue, clock, model, size, outstanding);
    feeder.Run(Seconds(0.3));
    const auto [ended, seconds] = feeder.Run(Seconds(absl::GetFlag(FLAGS_seconds)));
    const double rate = static_cast<double>(ended) / seconds;
    const double gigabytes = 2.0 * rate * static_cast<double>(feeder.bytes()) / 1e9;
    std::printf("%6d %12zu %12lld %12d %10.0f %10.2f %10.3f\n", options.lanes_per_device,
                options.lane.chunk_bytes, static_cast<long long>(feeder.bytes()), outstanding, rate,
                gigabytes, gigabytes / link);
    std::fflush(stdout);
  }
  queue.Close();
  executor.Join();
}

int Run() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("device_bench: no CUDA device is here; nothing measured");
    return 0;
  }
  const double link = LinkGigabytesPerSecond(devices);
  std::printf("pinned copies both ways, %d device(s): %.1f GB/s\n", devices, link);
  for (const int threads : {1, 4, 8}) {
    std::printf("host memcpy, %d thread(s): %.1f GB/s\n", threads,
                HostCopyGigabytesPerSecond(threads));
  }
  std::printf("%6s %12s %12s %12s %10s %10s %10s\n", "lanes", "chunk", "bytes", "outstanding",
              "req/s", "GB/s", "of link");
  for (const std::int64_t lanes : Numbers(absl::GetFlag(FLAGS_lanes))) {
    for (const std::int64_t chunk : Numbers(absl::GetFlag(FLAGS_chunks))) {
      DeviceBackendOptions options;
      options.lanes_per_device = static_cast<int>(lanes);
      options.pool_bytes = std::size_t{2} << 30;
      options.lane.chunk_bytes = static_cast<std::size_t>(chunk);
      options.lane.mapped_bytes = static_cast<std::size_t>(absl::GetFlag(FLAGS_mapped_bytes));
      MeasureLanes(options, devices, link);
    }
  }
  return 0;
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return normd::Run();
}
