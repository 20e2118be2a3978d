// What a tensor in shared memory costs beside the same tensor in messages, in turns: ModelInfer
// with its tensors in messages (encoded once; nothing is decoded), over TCP and over a unix socket;
// ModelInfer with its tensors in a region of /dev/shm, likewise; a gRPC server that echoes over
// another unix socket what these calls send, and one that copies the tensor's bytes besides; and
// the kernels alone, called in this process. normd runs in this process, too, so that "cpu us" is
// the processor time of client and server together for one call. The rates are the machine's; the
// ratios, medians over the turns, are the numbers.
// "- echo" is the p50's excess over that of the echo of a message that names a region.
//
//   shm_bench --sizes=262144,1048576,67108864 --connections=8
//   shm_bench --sizes=65536 --connections=1 --only=unix      # latencies

#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "inference/grpc_service.grpc.pb.h"
#include "kernels/cpu/normalize.h"
#include "spdlog/spdlog.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/measure.h"

ABSL_FLAG(std::vector<std::string>, sizes,
          std::vector<std::string>({"65536", "262144", "1048576", "67108864"}),
          "bytes of the tensor, multiples of 16384");
ABSL_FLAG(int, connections, 2, "closed-loop clients, each with a connection and memory of its own");
ABSL_FLAG(int, rounds, 7, "turns of each way; the ratio is the median of theirs");
ABSL_FLAG(std::string, only, "",
          "the way of this name, such as \"echo, unix\", or else ways with this in their name");
ABSL_FLAG(absl::Duration, round, absl::Milliseconds(700), "length of one turn");

namespace normd {
namespace {

constexpr std::int64_t kRowElements = 4096;
constexpr char kEcho[] = "echo, unix";  // The message names a region.
constexpr char kPath[] = "/inference.GRPCInferenceService/ModelInfer";

[[noreturn]] void Exit(const std::string& why) {
  std::fprintf(stderr, "shm_bench: %s\n", why.c_str());
  std::exit(1);
}

// x and y of one client, side by side in a shared memory object.
class SharedTensors {
 public:
  SharedTensors(const std::string& name, std::int64_t bytes) : name_(name), bytes_(bytes) {
    const int file = shm_open(key().c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, 2 * bytes) != 0) Exit("no shared memory");
    void* const at = mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) Exit("no shared memory");
    data_ = static_cast<float*>(at);
    for (std::int64_t i = 0; i < bytes / 4; ++i) data_[i] = static_cast<float>(i % 13) - 6.0f;
    std::memset(y(), 0xff, static_cast<std::size_t>(bytes));
  }
  ~SharedTensors() {
    munmap(data_, size());
    shm_unlink(key().c_str());
  }
  SharedTensors(const SharedTensors&) = delete;
  SharedTensors& operator=(const SharedTensors&) = delete;

  const std::string& name() const { return name_; }
  std::string key() const { return "/" + name_; }
  std::size_t size() const { return static_cast<std::size_t>(2 * bytes_); }
  std::int64_t bytes() const { return bytes_; }
  float* x() const { return data_; }
  float* y() const { return data_ + bytes_ / 4; }

 private:
  const std::string name_;
  const std::int64_t bytes_;
  float* data_ = nullptr;
};

inference::ModelInferRequest RequestFor(std::int64_t bytes) {
  inference::ModelInferRequest request;
  request.set_model_name("rms_norm");
  auto& input = *request.add_inputs();
  input.set_name("x");
  input.set_datatype("FP32");
  input.add_shape(bytes / (kRowElements * 4));
  input.add_shape(kRowElements);
  request.add_outputs()->set_name("y");
  return request;
}

std::string InMessage(const SharedTensors& tensors) {
  inference::ModelInferRequest request = RequestFor(tensors.bytes());
  request.add_raw_input_contents(tensors.x(), static_cast<std::size_t>(tensors.bytes()));
  return request.SerializeAsString();
}

std::string InRegion(const SharedTensors& tensors) {
  inference::ModelInferRequest request = RequestFor(tensors.bytes());
  const auto place = [&](auto* tensor, std::int64_t offset) {
    auto& parameters = *tensor->mutable_parameters();
    parameters["shared_memory_region"].set_string_param(tensors.name());
    parameters["shared_memory_byte_size"].set_int64_param(tensors.bytes());
    parameters["shared_memory_offset"].set_int64_param(offset);
  };
  place(request.mutable_inputs(0), 0);
  place(request.mutable_outputs(0), tensors.bytes());
  return request.SerializeAsString();
}

void Register(const std::string& address, const SharedTensors& tensors) {
  const auto stub = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  inference::SystemSharedMemoryRegisterRequest request;
  request.set_name(tensors.name());
  request.set_key(tensors.key());
  request.set_byte_size(tensors.size());
  inference::SystemSharedMemoryRegisterResponse unused;
  const grpc::Status status = stub->SystemSharedMemoryRegister(&context, request, &unused);
  if (!status.ok()) Exit(status.error_message());
}

// Hands each message back as it came, with gRPC's cheapest reactor.
class EchoService : public inference::GRPCInferenceService::WithRawCallbackMethod_ModelInfer<
                        inference::GRPCInferenceService::Service> {
 public:
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    *response = *request;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

// Copies as many bytes as a tensor has, besides, from memory of its own to other memory of its own:
// what no way can save, and what that does to the caches of all the rest.
class CopyingEchoService final : public EchoService {
 public:
  explicit CopyingEchoService(std::size_t bytes) : bytes_(bytes) {}
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    thread_local std::vector<char> memory;
    memory.resize(2 * bytes_);
    std::memcpy(memory.data() + bytes_, memory.data(), bytes_);
    return EchoService::ModelInfer(context, request, response);
  }

 private:
  const std::size_t bytes_;
};

// Where the servers listen.
struct Addresses {
  std::string tcp;
  std::string unix_socket;
  std::string echo;
  std::string copying_echo;
};

// One client, with each way to have its tensor normalized.
struct Client {
  Client(const Addresses& servers, int number, std::int64_t bytes)
      : tensors(absl::StrCat("shm_bench_", getpid(), "_", bytes, "_", number), bytes),
        stub(ConnectAlone(servers.tcp)),
        unix_stub(ConnectAlone(servers.unix_socket)),
        echo_stub(ConnectAlone(servers.echo)),
        copying_echo_stub(ConnectAlone(servers.copying_echo)),
        in_message(InMessage(tensors)),
        in_region(InRegion(tensors)) {
    Register(servers.tcp, tensors);
  }

  const SharedTensors tensors;
  const std::unique_ptr<grpc::GenericStub> stub;
  const std::unique_ptr<grpc::GenericStub> unix_stub;
  const std::unique_ptr<grpc::GenericStub> echo_stub;
  const std::unique_ptr<grpc::GenericStub> copying_echo_stub;
  const std::string in_message;
  const std::string in_region;
};
using Clients = std::vector<std::unique_ptr<Client>>;
using Way = std::function<void(Client&)>;

// The turns of one way.
using Column = std::vector<BenchTurn>;

double RateRatio(const Column& a, const Column& b) {
  return Median(Ratios(a, b, &BenchTurn::calls_per_second));
}

double ExcessOver(const Column& a, const Column& b) {
  std::vector<double> excess;
  for (std::size_t i = 0; i < a.size(); ++i) excess.push_back(a[i].p50_us - b[i].p50_us);
  return Median(excess);
}

void CheckSameBits(Client& client, const Way& kernel, const Way& region) {
  const auto bytes = static_cast<std::size_t>(client.tensors.bytes());
  kernel(client);
  const std::string expected(reinterpret_cast<const char*>(client.tensors.y()), bytes);
  std::memset(client.tensors.y(), 0xff, bytes);
  region(client);
  if (std::memcmp(expected.data(), client.tensors.y(), bytes) == 0) return;
  Exit(absl::StrCat("other bits: ", client.tensors.y()[0], " for ", client.tensors.x()[0],
                    ", the kernels give ", reinterpret_cast<const float*>(expected.data())[0]));
}

using Ways = std::vector<std::pair<std::string, Way>>;

// The ways take turns. Prints a line for each.
void MeasureWays(const Clients& clients, const Ways& ways, std::int64_t bytes) {
  std::vector<Column> columns(ways.size());
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      columns[i].push_back(TakeTurn(clients.size(), absl::GetFlag(FLAGS_round),
                                    [&](std::size_t client) { ways[i].second(*clients[client]); }));
    }
  }
  const Column* echo = nullptr;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (ways[i].first == kEcho) echo = &columns[i];
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const Column& column = columns[i];
    std::printf("%9ld %-17s %10.0f %10.2f %10.2f %10.0f %10.2f %10.0f %10s\n",
                static_cast<long>(bytes), ways[i].first.c_str(),
                Median(column, &BenchTurn::calls_per_second), RateRatio(column, columns[0]),
                RateRatio(column, columns.back()), Median(column, &BenchTurn::cpu_us),
                Median(columns[0], &BenchTurn::cpu_us) / Median(column, &BenchTurn::cpu_us),
                Median(column, &BenchTurn::p50_us),
                echo == nullptr ? "" : absl::StrFormat("%+.1f", ExcessOver(column, *echo)).c_str());
  }
  std::fflush(stdout);
}

// One size.
void Measure(Addresses servers, std::int64_t bytes) {
  CopyingEchoService copying_service(static_cast<std::size_t>(bytes));
  const EchoServer copying_echo(copying_service, grpc::InsecureServerCredentials(),
                                absl::StrCat("unix:///tmp/shm_bench_", getpid(), ".copy"));
  servers.copying_echo = copying_echo.address();
  const norm::cpu::Executor executor;
  norm::NormSpec spec = norm::RmsNormSpec(kRowElements, norm::DType::kFloat32);
  spec.eps = 1e-5;  // As the model's.
  const Way region = [](Client& client) { CallOrExit(*client.stub, kPath, client.in_region); };
  const Way kernel = [&](Client& client) {
    norm::Segment segment;
    segment.x = client.tensors.x();
    segment.y = client.tensors.y();
    segment.samples = bytes / (kRowElements * 4);
    if (!executor.Normalize(spec, {}, &segment, 1).ok()) Exit("the kernel fails");
  };
  Clients clients;
  for (int i = 0; i < absl::GetFlag(FLAGS_connections); ++i) {
    clients.push_back(std::make_unique<Client>(servers, i, bytes));
  }
  for (const auto& client : clients) CheckSameBits(*client, kernel, region);
  Ways ways = {
      {"message, tcp", [](Client& client) { CallOrExit(*client.stub, kPath, client.in_message); }},
      {"message, unix",
       [](Client& client) { CallOrExit(*client.unix_stub, kPath, client.in_message); }},
      {"region, tcp", region},
      {"region, unix",
       [](Client& client) { CallOrExit(*client.unix_stub, kPath, client.in_region); }},
      {kEcho, [](Client& client) { CallOrExit(*client.echo_stub, kPath, client.in_region); }},
      {"copy, echo, unix",
       [](Client& client) { CallOrExit(*client.copying_echo_stub, kPath, client.in_region); }},
      {"tensor echo, unix",
       [](Client& client) { CallOrExit(*client.echo_stub, kPath, client.in_message); }},
      {"kernels", kernel}};
  const std::string only = absl::GetFlag(FLAGS_only);
  const bool names_one =
      std::any_of(ways.begin(), ways.end(), [&only](const auto& way) { return way.first == only; });
  std::erase_if(ways, [&](const auto& way) {
    return names_one ? way.first != only : way.first.find(only) == std::string::npos;
  });
  if (ways.empty()) Exit("--only: no way has this in its name");
  MeasureWays(clients, ways, bytes);
}

void Run(std::vector<std::string> normd_flags) {
  const std::string socket = absl::StrCat("unix:///tmp/shm_bench_", getpid(), ".sock");
  normd_flags.insert(normd_flags.begin(),
                     {"--shared_memory=named", absl::StrCat("--listen=127.0.0.1:0,", socket)});
  const BenchServer server({.model = "rms_norm",
                            .config = absl::StrCat("rms_norm { normalized_shape: ", kRowElements,
                                                   " eps: 1e-5 affine: false }"),
                            .flags = std::move(normd_flags)});
  EchoService echo_service;
  const EchoServer echo(echo_service, grpc::InsecureServerCredentials(),
                        absl::StrCat("unix:///tmp/shm_bench_", getpid(), ".echo"));
  const Addresses servers = {server.address().substr(0, server.address().find(',')), socket,
                             echo.address(), ""};
  std::printf("%s, %d connections\n", server.description().c_str(),
              absl::GetFlag(FLAGS_connections));
  std::printf("%9s %-17s %10s %10s %10s %10s %10s %10s %10s\n", "bytes", "way", "calls/s",
              "x message", "x kernels", "cpu us", "x cpu", "p50 us", "- echo");
  for (const std::int64_t bytes : SizesOrExit(absl::GetFlag(FLAGS_sizes), kRowElements * 4)) {
    Measure(servers, bytes);
  }
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  std::vector<std::string> normd_flags = normd::ParseBenchmark(argc, argv);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // As normd and normload do.
  spdlog::set_level(spdlog::level::warn);
  normd::Run(std::move(normd_flags));
}
