// What Normalize costs beyond the transport: normd and a server that only echoes, in one process,
// over loopback, closed loop, in turns. Both get the same bytes and send as many back; the client
// encodes nothing and decodes nothing. The ratios of the two are the numbers; the rates themselves
// are the machine's. "cpu us" is the processor time of client and server together for one call: on
// a machine that others use too its ratio says more than that of the rates. "allocs", "KiB" and
// "switches" are what client and server together allocate and how often their threads change, for
// one call. "turns" tells how the ratio and the difference of the medians vary from turn to turn:
// the median, and what all but the lowest and the highest tenth lie between.
//
//   serving_bench --connections=16 --rounds=15 --round=500ms
//   serving_bench --connections=1 --sizes=1024          # the latency of an idle server
//   serving_bench --connections=1 --calls=64            # many calls on one connection
//   serving_bench --tls=true                            # both over TLS, and an echo without
//   serving_bench --connections=4 -- --device=cuda      # with flags of normd

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "server/rpc/credentials.h"
#include "spdlog/spdlog.h"
#include "tests/bench/allocations.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/measure.h"

ABSL_FLAG(int, connections, 16, "connections, each with closed-loop clients");
ABSL_FLAG(int, calls, 1, "clients of each connection");
ABSL_FLAG(std::vector<std::string>, sizes, std::vector<std::string>({"1024", "262144", "1048576"}),
          "bytes of the tensor, multiples of 1024");
ABSL_FLAG(int, rounds, 15, "turns of each server; the ratio is the median of theirs");
ABSL_FLAG(absl::Duration, round, absl::Milliseconds(500), "length of one turn");
ABSL_FLAG(bool, tls, false,
          "both servers speak TLS; an echo without TLS takes turns with them, too");

namespace normd {
namespace {

constexpr char kMethod[] = "/normd.v1.NormService/Normalize";
constexpr std::int64_t kRowElements = 256;

// Hands each message back as it came, with gRPC's cheapest reactor.
class EchoService final
    : public v1::NormService::WithRawCallbackMethod_Normalize<v1::NormService::Service> {
 public:
  grpc::ServerUnaryReactor* Normalize(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override {
    *response = *request;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

BenchServerOptions ServerOptions(std::vector<std::string> flags, const BenchTls* tls) {
  BenchServerOptions options;
  options.flags = std::move(flags);
  if (tls != nullptr) options.tls = &tls->store();
  options.model = "rms_norm";
  options.config =
      absl::StrCat("rms_norm { normalized_shape: ", kRowElements, " affine: false }\n");
  return options;
}

// The sums, in seconds, of the series `name` of the model with this `label`.
double Sum(BenchServer& normd, const std::string& name, const std::string& label) {
  const std::string series = absl::StrCat(name, "{model=\"rms_norm\",", label, "} ");
  const std::string scrape = normd.metrics().Scrape();
  const std::size_t at = scrape.find(series);
  double value = 0;
  if (at == std::string::npos ||
      !absl::SimpleAtod(absl::string_view(scrape).substr(
                            at + series.size(), scrape.find('\n', at) - at - series.size()),
                        &value)) {
    return 0;
  }
  return value;
}

// Rows of kRowElements float32.
std::string TensorOf(std::int64_t bytes) {
  std::vector<float> x(static_cast<std::size_t>(bytes) / sizeof(float));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6.0f;
  return std::string(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
}

std::string EncodeNormalize(std::int64_t bytes) {
  v1::NormalizeRequest request;
  request.set_model("rms_norm");
  v1::Tensor& input = *request.add_inputs();
  input.set_dtype(v1::FLOAT32);
  input.add_shape(bytes / (kRowElements * 4));
  input.add_shape(kRowElements);
  input.set_data(TensorOf(bytes));
  return request.SerializeAsString();
}

struct Sample : BenchTurn {
  double allocations = 0;  // This and what follows: for one call.
  double allocated_kib = 0;
  double switches = 0;
};

// What this process has used so far.
struct Usage {
  double switches = 0;
  Allocations allocations;
};

Usage ReadUsage() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return {static_cast<double>(use.ru_nvcsw + use.ru_nivcsw), CountAllocations()};
}

using Clients = std::vector<std::shared_ptr<grpc::GenericStub>>;  // shared: by a connection's.

// With `tls`, which may be null, over TLS.
Clients Connect(const std::string& address, const BenchTls* tls) {
  const auto credentials = tls != nullptr ? tls->ForClients() : grpc::InsecureChannelCredentials();
  Clients clients;
  for (int i = 0; i < absl::GetFlag(FLAGS_connections); ++i) {
    const std::shared_ptr<grpc::GenericStub> stub = ConnectAlone(address, credentials);
    for (int k = 0; k < absl::GetFlag(FLAGS_calls); ++k) clients.push_back(stub);
  }
  return clients;
}

// Sends `wire` over and over; its responses have at least `least_bytes`.
Sample Measure(const Clients& clients, const std::string& wire, std::int64_t least_bytes,
               absl::Duration length) {
  const Usage before = ReadUsage();
  Sample sample{TakeTurn(clients.size(), length, [&](std::size_t i) {
    CallOrExit(*clients[i], kMethod, wire, static_cast<std::size_t>(least_bytes));
  })};
  const Usage after = ReadUsage();
  sample.allocations =
      static_cast<double>(after.allocations.count - before.allocations.count) / sample.calls;
  sample.allocated_kib =
      static_cast<double>(after.allocations.bytes - before.allocations.bytes) / 1024 / sample.calls;
  sample.switches = (after.switches - before.switches) / sample.calls;
  return sample;
}

constexpr char kOfNormalize[] = "method=\"Normalize\"";
constexpr const char* kStages[] = {"decode",  "queue",    "gather", "copy_in",
                                   "compute", "copy_out", "encode", "total"};
using StageSums = std::array<double, 8>;

// Seconds that requests have spent in each stage so far; the last is the whole, from the arrival to
// the hand-over of the response.
StageSums Stages(BenchServer& normd) {
  StageSums sums{};
  for (std::size_t i = 0; i + 1 < sums.size(); ++i) {
    sums[i] =
        Sum(normd, "normd_stage_duration_seconds_sum", absl::StrCat("stage=\"", kStages[i], "\""));
  }
  sums.back() = Sum(normd, "normd_request_duration_seconds_sum", kOfNormalize);
  return sums;
}

double Count(BenchServer& normd) {
  return Sum(normd, "normd_request_duration_seconds_count", kOfNormalize);
}

// The means between two readings.
void PrintStages(const StageSums& before, const StageSums& after, double requests) {
  std::printf("%22s", "mean us:");
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::printf(" %s %.1f", kStages[i], 1e6 * (after[i] - before[i]) / requests);
  }
  std::printf("\n");
}

// The median of the turns and, in one of ten of them each, what is less and what is more.
struct Spread {
  explicit Spread(std::vector<double> turns) {
    std::sort(turns.begin(), turns.end());
    median = turns[turns.size() / 2];
    low = turns[turns.size() / 10];
    high = turns[turns.size() - 1 - turns.size() / 10];
  }
  double low = 0;
  double median = 0;
  double high = 0;
};

// The medians of the turns, each measure by itself.
void Print(const char* server, std::int64_t bytes, const std::vector<Sample>& turns) {
  const double rate = Median(turns, &Sample::calls_per_second);
  std::printf("%9lld  %-10s %9.0f %8.3f", static_cast<long long>(bytes), server, rate,
              rate * static_cast<double>(bytes) / 1e9);
  for (const auto field : {&BenchTurn::p50_us, &BenchTurn::p99_us, &BenchTurn::cpu_us}) {
    std::printf(" %8.1f", Median(turns, field));
  }
  std::printf(" %8.1f %8.1f %8.2f", Median(turns, &Sample::allocations),
              Median(turns, &Sample::allocated_kib), Median(turns, &Sample::switches));
}

// The two servers, each with its connections.
class Comparison {
 public:
  explicit Comparison(std::vector<std::string> flags)
      : normd_(ServerOptions(std::move(flags), tls_.get())) {
    to_normd_ = Connect(normd_.address(), tls_.get());
    to_other_ = Connect(echo_.address(), tls_.get());
    if (tls_ != nullptr) {
      plain_echo_ = std::make_unique<EchoServer>(plain_echo_service_);
      to_plain_echo_ = Connect(plain_echo_->address(), nullptr);
    }
  }

  std::string description() const { return normd_.description(); }

  // Measures and prints turns with tensors of one size.
  void Run(std::int64_t bytes, int rounds, absl::Duration length) {
    const std::string wire = EncodeNormalize(bytes);
    Measure(to_other_, wire, bytes, length / 4);
    Measure(to_normd_, wire, bytes, length / 4);
    std::vector<Sample> other_samples;
    std::vector<Sample> normd_samples;
    std::vector<double> later_us;
    std::vector<Sample> plain_samples;
    const StageSums stages = Stages(normd_);
    const double count = Count(normd_);
    for (int round = 0; round < rounds; ++round) {
      other_samples.push_back(Measure(to_other_, wire, bytes, length));
      normd_samples.push_back(Measure(to_normd_, wire, bytes, length));
      if (tls_ != nullptr) {
        plain_samples.push_back(Measure(to_plain_echo_, wire, bytes, length));
      }
      later_us.push_back(normd_samples.back().p50_us - other_samples.back().p50_us);
    }
    const Spread rate(Ratios(normd_samples, other_samples, &BenchTurn::calls_per_second));
    Print("echo", bytes, other_samples);
    std::printf("\n");
    Print("normd", bytes, normd_samples);
    std::printf(" %8.3f %8.3f\n", rate.median,
                Median(Ratios(other_samples, normd_samples, &BenchTurn::cpu_us)));
    if (tls_ != nullptr) PrintPlain(bytes, plain_samples, other_samples);
    const Spread later(later_us);
    std::printf("%22s of other %.3f (%.3f to %.3f), p50 %+.1f us (%+.1f to %+.1f)\n",
                "turns:", rate.median, rate.low, rate.high, later.median, later.low, later.high);
    PrintStages(stages, Stages(normd_), Count(normd_) - count);
    std::fflush(stdout);
  }

 private:
  // What TLS takes from the other server.
  static void PrintPlain(std::int64_t bytes, const std::vector<Sample>& plain,
                         const std::vector<Sample>& other) {
    Print("plain echo", bytes, plain);
    std::printf("\n%22s with TLS %.3f of it, by cpu %.3f\n",
                "plain echo:", Median(Ratios(other, plain, &BenchTurn::calls_per_second)),
                Median(Ratios(plain, other, &BenchTurn::cpu_us)));
  }

  // Null: no TLS.
  const std::unique_ptr<BenchTls> tls_ =
      absl::GetFlag(FLAGS_tls) ? std::make_unique<BenchTls>() : nullptr;
  BenchServer normd_;
  EchoService echo_service_;
  EchoService plain_echo_service_;
  const EchoServer echo_{echo_service_, tls_ != nullptr ? MakeTlsCredentials(tls_->store())
                                                        : grpc::InsecureServerCredentials()};
  std::unique_ptr<EchoServer> plain_echo_;
  Clients to_normd_;
  Clients to_other_;
  Clients to_plain_echo_;
};

int Run(std::vector<std::string> normd_flags) {
  spdlog::set_level(spdlog::level::warn);
  Comparison comparison(std::move(normd_flags));
  const absl::Duration length = absl::GetFlag(FLAGS_round);
  std::printf("%s; %d connections, %d calls on each, %d turns of %s\n",
              comparison.description().c_str(), absl::GetFlag(FLAGS_connections),
              absl::GetFlag(FLAGS_calls), absl::GetFlag(FLAGS_rounds),
              absl::FormatDuration(length).c_str());
  std::printf("%9s  %-10s %9s %8s %8s %8s %8s %8s %8s %8s %8s %8s\n", "bytes", "server", "calls/s",
              "GB/s", "p50 us", "p99 us", "cpu us", "allocs", "KiB", "switches", "of other",
              "by cpu");
  for (const std::int64_t bytes : SizesOrExit(absl::GetFlag(FLAGS_sizes), kRowElements * 4)) {
    comparison.Run(bytes, absl::GetFlag(FLAGS_rounds), length);
  }
  return 0;
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) { return normd::Run(normd::ParseBenchmark(argc, argv)); }
