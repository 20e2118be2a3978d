// How near normload comes to the truth, where the truth is known: a server in this process, over
// loopback, whose only lane serves one request at a time for a fixed time.
//
//   truth_bench --what=find_max --service_time=4ms --slo=p99=20ms --runs=3
//
// searches the highest rate that meets the objective, with a seed of its own each time. Expected is
// 1 / service time for constant arrivals, and for Poisson arrivals the load at which the wait of an
// M/D/1 queue meets the objective.
//
//   truth_bench --what=stall --rate=100 --duration=20s
//
// lets the lane pause for 1 s in every 10 and shows what the open loop and the closed one see of
// it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/load/objective.h"
#include "client/normload/normload.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/lane_around.h"

ABSL_FLAG(std::string, what, "find_max", "find_max or stall");
ABSL_FLAG(absl::Duration, service_time, absl::Milliseconds(4), "of the lane");
ABSL_FLAG(std::string, slo, "p99=20ms", "as normload's flag");
ABSL_FLAG(std::string, arrival, "constant", "as normload's flag");
ABSL_FLAG(absl::Duration, duration, absl::Seconds(4), "of each run of the load");
ABSL_FLAG(double, rate, 100, "where the search begins; of the open loop before a stalled lane");
ABSL_FLAG(int, runs, 3, "searches");
ABSL_FLAG(std::string, folder, "/tmp", "for the reports");

namespace normd::load {
namespace {

using Json = nlohmann::json;

// A lane whose service time is known, to hold measurements against.
//
// Serves each batch for `service_time` and then lets the inner lane compute it, which should take
// far less. Batches that wait follow each other without a gap: that a thread wakes late delays one
// answer and not those after it. Begins none in the first `pause` of every `period`, if that is
// above 0, counted from its own beginning.
class TimedLane final : public LaneAround {
 public:
  struct Times {
    Duration service_time{0};
    Duration pause{0};
    Duration period{0};
  };
  TimedLane(std::unique_ptr<Lane> inner, const Times& times)
      : LaneAround(std::move(inner)), times_(times), begin_(SteadyClock().Now()), free_(begin_) {}

  absl::Status Execute(std::unique_ptr<Batch> batch) override {
    // Service time counts from the arrival: a thread that wakes late, for this batch or the one
    // before, does not serve.
    TimePoint from = free_;
    for (const auto& request : batch->requests) from = std::max(from, request->admitted);
    if (times_.period > Duration{0}) {
      const Duration within = (from - begin_) % times_.period;
      if (within < times_.pause) from += times_.pause - within;
    }
    free_ = from + times_.service_time;
    std::this_thread::sleep_until(free_);
    return inner().Execute(std::move(batch));
  }

 private:
  const Times times_;
  const TimePoint begin_;
  TimePoint free_;
};

// Nobody interrupts.
class Patience final : public Interrupts {
 public:
  bool Wait(Duration limit) override {
    std::this_thread::sleep_for(limit);
    return false;
  }
};

BenchServerOptions ServerOptions(const TimedLane::Times& times) {
  BenchServerOptions options;
  options.model = "norm";
  options.config = "layer_norm { normalized_shape: 64 affine: false }\n";
  options.backend.device = "cpu";
  options.backend.cpu_lanes = 1;
  options.backend.cpu_threads = 1;
  options.queue.limits.max_rows = 1;
  options.queue.max_queue_requests = 1 << 20;
  options.wrap_lane = [times](std::unique_ptr<Lane> lane) {
    return std::make_unique<TimedLane>(std::move(lane), times);
  };
  return options;
}

// The report of one command line; ends the process where it failed.
Json Run(const BenchServer& server, std::vector<std::string> arguments) {
  const std::string file = absl::StrCat(absl::GetFlag(FLAGS_folder), "/truth_bench.json");
  for (const std::string& argument :
       {absl::StrCat("--server=", server.address()), std::string("--model=norm"),
        std::string("--shape=1x64"), std::string("--quiet"),
        absl::StrCat("--duration=", absl::FormatDuration(absl::GetFlag(FLAGS_duration))),
        absl::StrCat("--json=", file)}) {
    arguments.push_back(argument);
  }
  Patience patience;
  std::ostringstream out;
  if (RunNormload(arguments, patience, out, std::cerr, false) != kExitOk) std::exit(1);
  std::FILE* const opened = std::fopen(file.c_str(), "rb");
  if (opened == nullptr) std::exit(1);
  const Json report = Json::parse(opened);
  std::fclose(opened);
  std::remove(file.c_str());
  return report;
}

// The load of an M/D/1 queue at which a share of 1 - `percent` % waits for longer than `services`
// times the service time. Its tail is C exp(-eta services), with load (exp(eta) - 1) = eta and
// C = (1 - load) / (load exp(eta) - 1). Source: Tijms, "A First Course in Stochastic Models".
double LoadOfMd1(double percent, double services) {
  double low = 0.01;
  double high = 0.999;
  for (int i = 0; i < 60; ++i) {
    const double load = (low + high) / 2;
    double eta_low = 1e-9;
    double eta_high = 50;
    for (int j = 0; j < 100; ++j) {
      const double eta = (eta_low + eta_high) / 2;
      (load * std::expm1(eta) < eta ? eta_low : eta_high) = eta;
    }
    const double tail = (1 - load) / (load * std::exp(eta_low) - 1) * std::exp(-eta_low * services);
    (tail < 1 - percent / 100 ? low : high) = load;
  }
  return low;
}

int FindMax() {
  const absl::Duration service = absl::GetFlag(FLAGS_service_time);
  const Objective objective = ParseObjective(absl::GetFlag(FLAGS_slo)).value();
  const BenchServer server(ServerOptions({absl::ToChronoNanoseconds(service), {}, {}}));
  const double capacity = 1 / absl::ToDoubleSeconds(service);
  const double services = absl::FDivDuration(absl::FromChrono(objective.limit), service) - 1;
  const bool poisson = absl::GetFlag(FLAGS_arrival) == "poisson";
  const double expected = poisson ? capacity * LoadOfMd1(objective.percent, services) : capacity;
  std::printf("%s arrivals, %s, service time %s: expected %.1f/s\n",
              absl::GetFlag(FLAGS_arrival).c_str(), objective.ToString().c_str(),
              absl::FormatDuration(service).c_str(), expected);
  std::vector<double> found;
  for (int i = 1; i <= absl::GetFlag(FLAGS_runs); ++i) {
    const Json report = Run(server, {"--find_max", absl::StrCat("--slo=", absl::GetFlag(FLAGS_slo)),
                                     absl::StrCat("--arrival=", absl::GetFlag(FLAGS_arrival)),
                                     absl::StrCat("--rate=", absl::GetFlag(FLAGS_rate)),
                                     absl::StrCat("--seed=", 1000 * i)});
    found.push_back(report["load"].get<double>());
    std::printf("seed %d: %.1f/s, %.3f of expected, %zu runs\n", 1000 * i, found.back(),
                found.back() / expected, report["points"].size());
    std::fflush(stdout);
  }
  const auto [least, most] = std::minmax_element(found.begin(), found.end());
  std::printf("largest over smallest: %.3f\n", *most / *least);
  return 0;
}

int Stall() {
  const BenchServer server(ServerOptions(
      {std::chrono::milliseconds(1), std::chrono::seconds(1), std::chrono::seconds(10)}));
  for (const bool open : {true, false}) {
    std::vector<std::string> load = {"--concurrency=1"};
    if (open) {
      load = {absl::StrCat("--rate=", absl::GetFlag(FLAGS_rate)), "--arrival=constant"};
    }
    const Json result = Run(server, load)["result"];
    const Json& times = result["response_time"];
    std::printf("%-12s %7d requests, p50 %9.3f ms, p99 %9.3f ms, p99.9 %9.3f ms, max %9.3f ms\n",
                open ? "open loop" : "closed loop", result["ok"].get<int>(),
                1e-3 * times["p50_us"].get<double>(), 1e-3 * times["p99_us"].get<double>(),
                1e-3 * times["p99_9_us"].get<double>(), 1e-3 * times["max_us"].get<double>());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace normd::load

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  spdlog::set_level(spdlog::level::warn);
  return absl::GetFlag(FLAGS_what) == "stall" ? normd::load::Stall() : normd::load::FindMax();
}
