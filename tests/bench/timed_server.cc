// A server whose lanes take a time that is set, and no processor: a replica for measuring fleets of
// more than a machine has cores for, and a truth to hold load clients against. All but the lanes is
// normd's: transport, queue, batches, health.
//
//   timed_server --listen=127.0.0.1:9001 --batch_time=20ms --request_time=5ms --jitter=0.2
//   timed_server --request_time=0 --max_batch_requests=1      # 50 requests per second
//   timed_server --batch_time=1ms --request_time=0 --max_batch_requests=1 --pause=1s
//
// Serves the model "norm" (LayerNorm over 64 elements, float32) until it is killed or, so that
// nothing is left behind, its standard input ends.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/tensor/random.h"
#include "server/exec/lane.h"
#include "spdlog/spdlog.h"
#include "tests/bench/bench_server.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:0", "address and port");
ABSL_FLAG(absl::Duration, batch_time, absl::Milliseconds(20), "of a lane, for a batch");
ABSL_FLAG(absl::Duration, request_time, absl::Milliseconds(5), "and for each request in it");
ABSL_FLAG(double, jitter, 0, "spread of the two, 0 to 1: the deviation as a share of the mean");
ABSL_FLAG(int, lanes, 1, "lanes");
ABSL_FLAG(int, max_batch_requests, 8, "requests in a batch");
ABSL_FLAG(absl::Duration, max_queue_delay, absl::ZeroDuration(), "as normd's flag");
ABSL_FLAG(absl::Duration, pause, absl::ZeroDuration(),
          "no batch begins in the first of it of every");
ABSL_FLAG(absl::Duration, period, absl::Seconds(10), "of these");
ABSL_FLAG(std::uint64_t, seed, 1, "of the spread");

namespace normd {
namespace {

// Serves a batch of n for (batch + n * request) * (1 + jitter * e), where e is exponentially
// distributed with mean 1, less 1; then lets the inner lane compute it, which should take far less.
// The time counts from the last arrival or from the end of the batch before: that a thread wakes
// late delays one answer and not those after it. Each request is told of all of it as its compute
// time.
class TimedLane final : public Lane {
 public:
  struct Times {
    Duration batch{0};
    Duration request{0};
    double jitter = 0;  // 0 to 1.
    Duration pause{0};  // From the beginning of each period, the first at the lane's own.
    Duration period{1};
  };
  TimedLane(std::unique_ptr<Lane> inner, const Times& times, std::uint64_t seed)
      : inner_(std::move(inner)), times_(times), random_(seed) {}

  const std::string& name() const override { return inner_->name(); }
  const std::string& device() const override { return inner_->device(); }
  void Flush() override { inner_->Flush(); }

  absl::Status Execute(std::unique_ptr<Batch> batch) override {
    TimePoint from = free_;
    for (const auto& request : batch->requests) from = std::max(from, request->admitted);
    const TimePoint begun = from;
    const Duration within = (from - begin_) % times_.period;
    if (within < times_.pause) from += times_.pause - within;
    const Duration mean =
        times_.batch + times_.request * static_cast<Duration::rep>(batch->requests.size());
    const double deviation = -std::log1p(-random_.NextDouble()) - 1;
    free_ =
        from +
        Duration(std::llround(static_cast<double>(mean.count()) * (1 + times_.jitter * deviation)));
    std::this_thread::sleep_until(free_);
    const Duration slept = SteadyClock().Now() - begun;
    for (std::unique_ptr<Request>& request : batch->requests) {
      request->done = [slept, done = std::move(request->done)](Completion&& completion) mutable {
        completion.stages[Stage::kCompute] += slept;
        std::move(done)(std::move(completion));
      };
    }
    return inner_->Execute(std::move(batch));
  }

 private:
  const std::unique_ptr<Lane> inner_;
  const Times times_;
  client::SplitMix64 random_;
  const TimePoint begin_ = SteadyClock().Now();
  TimePoint free_ = begin_;
};

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  spdlog::set_level(spdlog::level::warn);
  normd::BenchServerOptions options;
  options.model = "norm";
  options.config = "layer_norm { normalized_shape: 64 affine: false }\n";
  options.flags = {absl::StrCat("--listen=", absl::GetFlag(FLAGS_listen)), "--cpu_threads=1",
                   absl::StrCat("--cpu_lanes=", absl::GetFlag(FLAGS_lanes)),
                   absl::StrCat("--max_batch_rows=", absl::GetFlag(FLAGS_max_batch_requests)),
                   absl::StrCat("--max_queue_delay=",
                                absl::FormatDuration(absl::GetFlag(FLAGS_max_queue_delay)))};
  const normd::TimedLane::Times times = {
      absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_batch_time)),
      absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_request_time)), absl::GetFlag(FLAGS_jitter),
      absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_pause)),
      absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_period))};
  std::uint64_t seed = absl::GetFlag(FLAGS_seed) << 8;
  options.wrap_lane = [&](std::unique_ptr<normd::Lane> lane) {
    return std::make_unique<normd::TimedLane>(std::move(lane), times, ++seed);
  };
  const normd::BenchServer server(options);
  std::printf("%s\n", server.address().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
