// Normalize's latency beside callers of the methods that list models, at a server that runs.
//
//   list_bench --server=127.0.0.1:8001 --model=rms_norm_4096 --size=4096 --callers=8
//
// Each caller has a connection of its own, asks again as soon as it has the response, and does not
// parse it.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "normd/v1/norm_service.grpc.pb.h"

ABSL_FLAG(std::string, server, "127.0.0.1:8001", "The server.");
ABSL_FLAG(std::string, model, "rms_norm_4096", "The model of the Normalize calls.");
ABSL_FLAG(int, size, 4096, "The elements of a row, of which a call sends one.");
ABSL_FLAG(int, callers, 8, "How many callers list at once.");
ABSL_FLAG(double, seconds, 5, "How long to measure each method.");

namespace normd {
namespace {

using SteadyTime = std::chrono::steady_clock;

std::shared_ptr<grpc::Channel> Connect() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(absl::GetFlag(FLAGS_server), grpc::InsecureChannelCredentials(),
                                   arguments);
}

// Returns the response's bytes; -1 for an error.
std::int64_t CallOnce(grpc::GenericStub& stub, const std::string& method) {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.ok() ? static_cast<std::int64_t>(response.Length()) : -1;
}

// Until `stop`, each in a thread; counts the responses, and their bytes.
class Listers {
 public:
  Listers(int count, const std::string& method) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, method] {
        grpc::GenericStub stub(Connect());
        while (!stop_) {
          const std::int64_t bytes = CallOnce(stub, method);
          if (bytes < 0) {
            ++refused;
            continue;
          }
          ++lists;
          list_bytes = bytes;
        }
      });
    }
  }
  ~Listers() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  std::atomic<std::int64_t> lists{0};
  std::atomic<std::int64_t> refused{0};
  std::atomic<std::int64_t> list_bytes{0};

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// In milliseconds, sorted.
std::vector<double> NormalizeTimes(v1::NormService::Stub& stub, double seconds) {
  v1::NormalizeRequest request;
  request.set_model(absl::GetFlag(FLAGS_model));
  v1::Tensor& x = *request.add_inputs();
  x.set_dtype(v1::FLOAT32);
  x.add_shape(1);
  x.add_shape(absl::GetFlag(FLAGS_size));
  x.mutable_data()->assign(static_cast<std::size_t>(absl::GetFlag(FLAGS_size)) * 4, '\x3d');
  std::vector<double> times;
  const auto end = SteadyTime::now() + std::chrono::duration<double>(seconds);
  while (SteadyTime::now() < end) {
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    const auto begin = SteadyTime::now();
    const grpc::Status status = stub.Normalize(&context, request, &response);
    if (!status.ok()) {
      std::fprintf(stderr, "Normalize: %s\n", status.error_message().c_str());
      return {};
    }
    times.push_back(std::chrono::duration<double, std::milli>(SteadyTime::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times;
}

void Measure(const std::string& method, int callers) {
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const auto stub = v1::NormService::NewStub(Connect());
  NormalizeTimes(*stub, 0.2);  // Connects.
  Listers listers(callers, method);
  NormalizeTimes(*stub, 0.5);
  const std::int64_t lists = listers.lists;
  const std::vector<double> times = NormalizeTimes(*stub, seconds);
  if (times.empty()) return;
  std::printf("%-45s %8.2f %8.2f %9.0f %9.0f %10lld %8lld\n", callers == 0 ? "-" : method.c_str(),
              times[times.size() / 2], times[times.size() * 99 / 100],
              static_cast<double>(times.size()) / seconds,
              static_cast<double>(listers.lists - lists) / seconds,
              static_cast<long long>(listers.list_bytes), static_cast<long long>(listers.refused));
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  std::printf("%-45s %8s %8s %9s %9s %10s %8s\n", "beside", "p50 ms", "p99 ms", "calls/s",
              "lists/s", "list bytes", "refused");
  normd::Measure("/normd.v1.NormService/ListModels", 0);
  for (const char* method :
       {"/normd.v1.NormService/ListModels", "/inference.GRPCInferenceService/ModelStatistics",
        "/inference.GRPCInferenceService/RepositoryIndex"}) {
    normd::Measure(method, absl::GetFlag(FLAGS_callers));
  }
}
