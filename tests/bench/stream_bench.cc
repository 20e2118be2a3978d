// What a stream costs beyond the transport: NormalizeStream and a stream that only echoes, in one
// process, over loopback, in turns. Both get the same messages and send as many bytes back, through
// the same client. The ratio of the two is the number; the rates themselves are the machine's. "cpu
// ms/GB" is the processor time of client and server together.
//
//   stream_bench --streams=1 --tensor_bytes=1073741824 --rounds=7 [-- FLAGS OF NORMD]

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/stream_transport.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "spdlog/spdlog.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/measure.h"

ABSL_FLAG(int, streams, 1, "at once, each with a connection of its own");
ABSL_FLAG(std::int64_t, tensor_bytes, std::int64_t{1} << 30,
          "of one stream; a multiple of 64 rows");
ABSL_FLAG(std::int64_t, row_bytes, std::int64_t{1} << 20, "of InstanceNorm, a multiple of 4");
ABSL_FLAG(std::int64_t, chunk_bytes, std::int64_t{1} << 20, "of the client's messages");
ABSL_FLAG(int, rounds, 7, "turns of each server; the ratio is the median of theirs");

namespace normd {
namespace {

constexpr char kMethod[] = "/normd.v1.NormService/NormalizeStream";
constexpr std::int64_t kChannels = 64;

// Hands each message back as it came; reads the next while it sends, and keeps few.
class EchoCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  EchoCall() { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    bool write = false;
    bool read = false;
    bool finish = false;
    {
      MutexLock lock(mutex_);
      read_all_ = !ok;
      if (ok) messages_.push_back(std::move(incoming_));
      incoming_ = grpc::ByteBuffer();
      write = ok && !writing_;
      if (write) TakeOne();
      reading_ = read = ok && messages_.size() < kMessages;
      finish = read_all_ && !writing_;
    }
    if (read) StartRead(&incoming_);
    if (write) StartWrite(&outgoing_);
    if (finish) Finish(grpc::Status::OK);
  }
  void OnWriteDone(bool) override {
    bool write = false;
    bool read = false;
    bool finish = false;
    {
      MutexLock lock(mutex_);
      writing_ = write = !messages_.empty();
      if (write) TakeOne();
      read = !reading_ && !read_all_;
      if (read) reading_ = true;
      finish = read_all_ && !write;
    }
    if (write) StartWrite(&outgoing_);
    if (read) StartRead(&incoming_);
    if (finish) Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  static constexpr std::size_t kMessages = 4;

  void TakeOne() {
    writing_ = true;
    outgoing_ = std::move(messages_.front());
    messages_.pop_front();
  }

  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  Mutex mutex_;
  std::deque<grpc::ByteBuffer> messages_;
  bool reading_ = true;
  bool writing_ = false;
  bool read_all_ = false;
};

class EchoService final
    : public v1::NormService::WithRawCallbackMethod_NormalizeStream<v1::NormService::Service> {
 public:
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NormalizeStream(
      grpc::CallbackServerContext*) override {
    return new EchoCall();
  }
};

grpc::ByteBuffer ToBuffer(const v1::NormalizeStreamRequest& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// One connection, and streams over it.
class Client {
 public:
  explicit Client(const std::string& address) : stub_(ConnectAlone(address)) {}

  // The same bytes for either server: the one takes them for a tensor, the other sends them back.
  void Stream(const grpc::ByteBuffer& header, const grpc::ByteBuffer& chunk, std::int64_t chunks) {
    client::StreamTransport transport(*stub_, kMethod, Duration::max());
    std::thread writer([&] {
      transport.Write(header);
      for (std::int64_t i = 0; i < chunks && transport.Write(chunk); ++i) {
      }
      transport.WritesDone();
    });
    std::size_t bytes = 0;
    while (const auto message = transport.Read()) bytes += message->Length();
    writer.join();
    const grpc::Status status = transport.Finish();
    const auto wanted = static_cast<std::size_t>(absl::GetFlag(FLAGS_tensor_bytes));
    if (!status.ok() || bytes < wanted) {
      std::fprintf(stderr, "stream_bench: %zu bytes, wanted %zu; %s\n", bytes, wanted,
                   status.error_message().c_str());
      std::exit(1);
    }
  }

 private:
  std::unique_ptr<grpc::GenericStub> stub_;
};

struct Sample {
  double gb_per_second = 0;
  double cpu_ms_per_gb = 0;
};

using Clients = std::vector<std::unique_ptr<Client>>;

Clients Connect(const std::string& address) {
  Clients clients;
  for (int i = 0; i < absl::GetFlag(FLAGS_streams); ++i) {
    clients.push_back(std::make_unique<Client>(address));
  }
  return clients;
}

Sample Measure(Clients& clients, const grpc::ByteBuffer& header, const grpc::ByteBuffer& chunk,
               std::int64_t chunks) {
  const double cpu = CpuMicroseconds();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (const auto& client : clients) {
    threads.emplace_back([&] { client->Stream(header, chunk, chunks); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double gb = static_cast<double>(absl::GetFlag(FLAGS_tensor_bytes)) *
                    static_cast<double>(clients.size()) / 1e9;
  return {gb / took.count(), 1e-3 * (CpuMicroseconds() - cpu) / gb};
}

int Run(const std::vector<std::string>& normd_flags) {
  spdlog::set_level(spdlog::level::warn);
  const std::int64_t row_bytes = absl::GetFlag(FLAGS_row_bytes);
  const std::int64_t tensor_bytes = absl::GetFlag(FLAGS_tensor_bytes);
  const std::int64_t chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  if (row_bytes % 4 != 0 || tensor_bytes % (row_bytes * kChannels) != 0 ||
      tensor_bytes % chunk_bytes != 0) {
    std::fprintf(stderr, "stream_bench: wanted whole elements, samples of 64 rows, and chunks\n");
    return 2;
  }
  v1::NormalizeStreamRequest message;
  message.mutable_header()->set_model("norm");
  v1::Tensor& input = *message.mutable_header()->add_inputs();
  input.set_dtype(v1::FLOAT32);
  for (const std::int64_t dim : {tensor_bytes / row_bytes / kChannels, kChannels, row_bytes / 4}) {
    input.add_shape(dim);
  }
  const grpc::ByteBuffer header = ToBuffer(message);
  std::vector<float> x(static_cast<std::size_t>(chunk_bytes / 4));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1013);
  message.set_chunk(x.data(), static_cast<std::size_t>(chunk_bytes));
  const grpc::ByteBuffer chunk = ToBuffer(message);
  const std::int64_t chunks = tensor_bytes / chunk_bytes;

  const BenchServer normd({.model = "norm",
                           .config = absl::StrCat("instance_norm { channels: ", kChannels, " }"),
                           .flags = normd_flags});
  EchoService echo_service;
  const EchoServer echo(echo_service);
  Clients to_normd = Connect(normd.address());
  Clients to_echo = Connect(echo.address());
  Measure(to_echo, header, chunk, chunks);
  Measure(to_normd, header, chunk, chunks);
  std::vector<Sample> of_echo;
  std::vector<Sample> of_normd;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    of_echo.push_back(Measure(to_echo, header, chunk, chunks));
    of_normd.push_back(Measure(to_normd, header, chunk, chunks));
  }
  std::printf("%s; %d streams of %.2f GB in rows of %lld and chunks of %lld bytes, %d turns\n",
              normd.description().c_str(), absl::GetFlag(FLAGS_streams),
              static_cast<double>(tensor_bytes) / 1e9, static_cast<long long>(row_bytes),
              static_cast<long long>(chunk_bytes), absl::GetFlag(FLAGS_rounds));
  std::printf("%-6s %9s %12s %9s %9s\n", "server", "GB/s", "cpu ms/GB", "of echo", "by cpu");
  constexpr auto kRate = &Sample::gb_per_second;
  constexpr auto kCpu = &Sample::cpu_ms_per_gb;
  std::printf("%-6s %9.3f %12.1f\n", "echo", Median(of_echo, kRate), Median(of_echo, kCpu));
  std::printf("%-6s %9.3f %12.1f %9.3f %9.3f\n", "normd", Median(of_normd, kRate),
              Median(of_normd, kCpu), Median(Ratios(of_normd, of_echo, kRate)),
              Median(Ratios(of_echo, of_normd, kCpu)));
  return 0;
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) { return normd::Run(normd::ParseBenchmark(argc, argv)); }
