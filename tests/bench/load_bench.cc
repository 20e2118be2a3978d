// What normload costs beyond the transport: its sender and statistics against a bare gRPC client
// that makes the same calls, both in a closed loop against a server that answers with the same
// bytes at once, over loopback, in turns. The ratio is the number; the rates are the machine's.
//
// The bare client is as gRPC comes. normload's connections do not retry calls; --bare_retries=false
// takes that from the bare client too. A third takes turns with them: the bare client without
// deadlines, which shows what these cost by themselves.
//
//   load_bench --connections=16 --rounds=31 --round=200ms

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/client.h"
#include "client/load/load_run.h"
#include "client/normload/grpc_sender.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "tests/bench/measure.h"

ABSL_FLAG(int, connections, 16, "callers, each with a connection of its own");
ABSL_FLAG(int, rows, 1, "rows of the tensor, 1 KiB each");
ABSL_FLAG(int, rounds, 31, "turns of each client; a ratio is the median of theirs");
ABSL_FLAG(absl::Duration, round, absl::Milliseconds(200), "length of one turn");
ABSL_FLAG(bool, bare_retries, true, "gRPC may send a bare client's call again, as by default");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(10),
          "deadline of the calls, as normload sets by default; inf: none");

namespace normd::load {
namespace {

constexpr char kMethod[] = "/normd.v1.NormService/Normalize";
constexpr int kRowElements = 256;

// Answers each request with the same message.
class ConstantService final
    : public v1::NormService::WithRawCallbackMethod_Normalize<v1::NormService::Service> {
 public:
  explicit ConstantService(const std::string& answer) : slice_(answer), answer_(&slice_, 1) {}

  grpc::ServerUnaryReactor* Normalize(grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                      grpc::ByteBuffer* response) override {
    *response = answer_;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const grpc::Slice slice_;
  const grpc::ByteBuffer answer_;
};

// The tensor of both messages.
void SetTensor(v1::Tensor& tensor) {
  const int rows = absl::GetFlag(FLAGS_rows);
  tensor.set_dtype(v1::FLOAT32);
  tensor.add_shape(rows);
  tensor.add_shape(kRowElements);
  tensor.set_data(std::string(static_cast<std::size_t>(rows) * kRowElements * 4, '\0'));
}

std::string Answer() {
  v1::NormalizeResponse response;
  response.set_model("m");
  response.set_version(1);
  response.mutable_stages()->set_compute_ns(1000);
  response.mutable_batch()->set_requests(1);
  SetTensor(*response.add_outputs());
  return response.SerializeAsString();
}

std::string Request() {
  v1::NormalizeRequest request;
  request.set_model("m");
  SetTensor(*request.add_inputs());
  return request.SerializeAsString();
}

// A closed loop with gRPC's callbacks and nothing else: it counts, and neither decodes nor
// measures.
class BareCaller {
 public:
  explicit BareCaller(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, absl::GetFlag(FLAGS_bare_retries) ? 1 : 0);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  void Begin(const grpc::Slice& request, absl::Duration timeout, const std::atomic<bool>& stop) {
    request_ = request;
    timeout_ = absl::ToChronoNanoseconds(timeout);
    stop_ = &stop;
    calls_ = 0;
    {
      MutexLock lock(mutex_);
      ended_ = false;
    }
    Send();
  }
  // The calls made; waits for the last, which comes after `stop`.
  std::int64_t Join() {
    MutexLock lock(mutex_);
    while (!ended_) changed_.Wait(mutex_);
    return calls_;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
  };

  void Send() {
    // shared: std::function copies what it holds.
    auto call = std::make_shared<Call>();
    call->request = grpc::ByteBuffer(&request_, 1);
    if (timeout_ != client::kNoTimeout) {
      call->context.set_deadline(std::chrono::system_clock::now() + timeout_);
    }
    stub_->UnaryCall(&call->context, kMethod, grpc::StubOptions(), &call->request, &call->response,
                     [this, call](const grpc::Status& status) {
                       if (!status.ok()) {
                         std::fprintf(stderr, "load_bench: %s\n", status.error_message().c_str());
                         std::exit(1);
                       }
                       ++calls_;
                       if (!stop_->load(std::memory_order_relaxed)) return Send();
                       MutexLock lock(mutex_);
                       ended_ = true;
                       changed_.SignalAll();
                     });
  }

  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::Slice request_;
  Duration timeout_{0};
  const std::atomic<bool>* stop_ = nullptr;
  std::int64_t calls_ = 0;  // One call is out at a time.
  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

struct Sample {
  double calls_per_second = 0;
  double cpu_us = 0;  // Client and server together, per call.
};

using Callers = std::vector<std::unique_ptr<BareCaller>>;

Sample MeasureBare(Callers& callers, const grpc::Slice& request, absl::Duration timeout) {
  std::atomic<bool> stop{false};
  const double cpu = CpuMicroseconds();
  const auto begin = std::chrono::steady_clock::now();
  for (auto& caller : callers) caller->Begin(request, timeout, stop);
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_round)));
  stop = true;
  std::int64_t calls = 0;
  for (auto& caller : callers) calls += caller->Join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto n = static_cast<double>(calls);
  return {n / took.count(), (CpuMicroseconds() - cpu) / n};
}

Sample MeasureLoad(const Workload& workload, GrpcSender& sender, SteadyPacer& pacer) {
  LoadOptions options;
  options.concurrency = absl::GetFlag(FLAGS_connections);
  options.stop.duration = absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_round));
  LoadRun run(std::move(options), workload, sender, pacer);
  const double cpu = CpuMicroseconds();
  const auto begin = std::chrono::steady_clock::now();
  run.Run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto n = static_cast<double>(run.Snapshot().measured.ok());
  return {n / took.count(), (CpuMicroseconds() - cpu) / n};
}

// The turns of one client.
struct Series {
  const char* name;
  std::vector<Sample> samples;
};

void Print(const Series& series) {
  std::printf("%-24s %10.0f calls/s %8.1f cpu us\n", series.name,
              Median(series.samples, &Sample::calls_per_second),
              Median(series.samples, &Sample::cpu_us));
}

void PrintRatio(const Series& one, const Series& other) {
  const auto ratio = [&](double Sample::*field) {
    return Median(Ratios(one.samples, other.samples, field));
  };
  std::printf("%s makes %.3f of the calls of %s, at %.3f of its processor time\n", one.name,
              ratio(&Sample::calls_per_second), other.name, ratio(&Sample::cpu_us));
}

int Run() {
  ConstantService service(Answer());
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const std::string address = absl::StrCat("127.0.0.1:", port);

  Callers callers;
  std::vector<std::unique_ptr<client::Caller>> clients;
  client::ClientOptions own;
  own.own_connection = true;
  own.retries = false;
  for (int i = 0; i < absl::GetFlag(FLAGS_connections); ++i) {
    callers.push_back(std::make_unique<BareCaller>(address));
    clients.push_back(client::Client::Create(address, own).value());
  }
  const std::string mix = absl::StrCat("m:", absl::GetFlag(FLAGS_rows), "x", kRowElements);
  const Workload workload = Workload::Create(ParseMix(mix).value(), 1).value();
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  GrpcSenderOptions sender_options;
  sender_options.timeout = absl::ToChronoNanoseconds(timeout);
  SteadyPacer pacer;
  const auto sender =
      GrpcSender::Create(std::move(clients), workload, {}, sender_options, pacer).value();

  const grpc::Slice request(Request());
  Series plain{"bare without deadlines", {}};
  Series bare{"bare", {}};
  Series load{"normload", {}};
  MeasureBare(callers, request, timeout);
  MeasureLoad(workload, *sender, pacer);
  for (int i = 0; i < absl::GetFlag(FLAGS_rounds); ++i) {
    plain.samples.push_back(MeasureBare(callers, request, absl::InfiniteDuration()));
    bare.samples.push_back(MeasureBare(callers, request, timeout));
    load.samples.push_back(MeasureLoad(workload, *sender, pacer));
  }
  for (const Series* series : {&plain, &bare, &load}) Print(*series);
  PrintRatio(load, bare);
  PrintRatio(load, plain);
  server->Shutdown();
  return 0;
}

}  // namespace
}  // namespace normd::load

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // As normd and normload do.
  absl::ParseCommandLine(argc, argv);
  return normd::load::Run();
}
