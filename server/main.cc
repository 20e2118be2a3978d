// normd: puts the parts together and runs them until a signal.
//
// Exit codes: 0 stopped, every accepted request answered; 1 could not start; 2 wrong command line;
// 3 stopped early by a second signal or the drain timeout.

#include <malloc.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kernels/cpu/normalize.h"
#include "server/base/clock.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/config/config.h"
#include "server/exec/backend.h"
#include "server/exec/executor.h"
#include "server/metrics/exposer.h"
#include "server/metrics/metrics.h"
#include "server/model/registry.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/graceful_stop.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/readiness.h"
#include "server/rpc/request_log.h"
#include "server/rpc/server.h"
#include "spdlog/async.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

enum ExitCode { kStopped = 0, kStartFailed = 1, kWrongCommandLine = 2, kStoppedEarly = 3 };

// SIGTERM and SIGINT stop the server; the third wakes the thread that waits for them when it is to
// end, and does nothing when it comes from outside.
sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

// Runs on a thread that does not block the signal: one that a profiler or a sanitizer started
// before main. It blocks the signal from then on, and the signal goes to the next thread.
void SendOn(int signal, siginfo_t*, void* context) {
  sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, signal);
  kill(getpid(), signal);
}

// Before any thread of ours exists, so that all of them inherit the mask.
void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = SendOn;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

// Passes stop signals on to `stop` from a thread of its own. They are blocked in every thread
// of ours.
class SignalThread {
 public:
  explicit SignalThread(GracefulStop& stop) : thread_([this, &stop] { Loop(stop); }) {}
  ~SignalThread() {
    ending_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void Loop(GracefulStop& stop) {
    const sigset_t set = StopSignals();
    int signal = 0;
    while (sigwait(&set, &signal) == 0 && !ending_) {
      if (signal == SIGUSR1) continue;
      spdlog::info("received {}", signal == SIGTERM ? "SIGTERM" : "SIGINT");
      stop.Signal();
    }
  }

  std::atomic<bool> ending_{false};
  std::thread thread_;  // Last: it uses the flag.
};

void SetUpLog(const ServerConfig& config) {
  auto logger = spdlog::stderr_color_mt("normd");
  logger->set_level(spdlog::level::from_str(config.log_level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

// Null when the flags ask for no line. The lines go to stderr from a thread of the log's own, so
// that no lane waits for a slow reader; when it falls behind, the oldest lines are lost.
std::unique_ptr<RequestLog> MakeRequestLog(const ServerConfig& config) {
  RequestLogOptions options;
  options.slow_threshold = absl::ToChronoNanoseconds(config.slow_request_threshold);
  options.sample_every = config.log_sample_every;
  if (options.slow_threshold == Duration(0) && options.sample_every == 0) return nullptr;
  auto logger = spdlog::create_async_nb<spdlog::sinks::stderr_sink_mt>("requests");
  logger->set_pattern("%v");
  return std::make_unique<RequestLog>(
      options, [logger = std::move(logger)](const std::string& line) { logger->info(line); });
}

// gRPC takes memory for a message on whatever thread receives it, so each of glibc's arenas, by
// default eight for each core, comes to hold the most that its threads ever held at once, and
// memory grows for minutes. Small blocks come from caches of the threads' own, so few arenas are
// enough.
void BoundMemoryKept() {
  constexpr int kArenas = 4;
  mallopt(M_ARENA_MAX, kArenas);
}

int StartFailed(const absl::Status& status) {
  spdlog::critical("cannot start: {}", std::string(status.message()));
  return kStartFailed;
}

BackendOptions BackendOf(const ServerConfig& config) {
  BackendOptions options;
  options.device = config.device;
  options.cpu_lanes = config.cpu_lanes;
  options.cpu_threads = config.cpu_threads;
  options.pool_bytes = config.pool_bytes;
  options.device_lanes = config.device_lanes;
  options.max_inline_bytes = std::min(config.max_inline_bytes, kMaxDeviceInlineBytes);
  options.pinned_pool_bytes = config.pinned_pool_bytes;
  options.device_staging_bytes = config.device_staging_bytes;
  options.device_batch_bytes = std::max(config.max_batch_bytes, config.max_request_bytes);
  return options;
}

// A device is launched once for a batch, so it wants larger ones. Both gain from company only what
// one call of the kernels costs; a large batch would keep its requests from the other lanes, and
// leave the caches or the path through the link.
constexpr std::int64_t kCpuBatchBytes = std::int64_t{256} << 10;
constexpr std::int64_t kDeviceBatchBytes = std::int64_t{2} << 20;

BatchQueueOptions QueueOf(const ServerConfig& config, bool on_cpu) {
  BatchQueueOptions options;
  options.limits.max_rows = config.max_batch_rows;
  options.limits.max_bytes = config.max_batch_bytes > 0 ? config.max_batch_bytes
                             : on_cpu                   ? kCpuBatchBytes
                                                        : kDeviceBatchBytes;
  options.limits.max_queue_delay = absl::ToChronoNanoseconds(config.max_queue_delay);
  options.max_queue_requests = config.max_queue_requests;
  options.max_inline_bytes =
      on_cpu ? config.max_inline_bytes : std::min(config.max_inline_bytes, kMaxDeviceInlineBytes);
  options.priority_aging = absl::ToChronoNanoseconds(config.priority_aging);
  if (!on_cpu) options.look_out = absl::ToChronoNanoseconds(config.device_look_out);
  return options;
}

// A device's copies and launches cost the less the fewer they are.
constexpr std::int64_t kDevicePieceBytes = std::int64_t{4} << 20;

NormServiceOptions ServiceOf(const ServerConfig& config, const Executor& executor, bool on_cpu) {
  NormServiceOptions options;
  if (!on_cpu) options.stream.piece_bytes = kDevicePieceBytes;
  options.max_request_bytes = config.max_request_bytes;
  options.max_inflight_bytes = config.max_inflight_bytes;
  options.stream.window_bytes = config.stream_window_bytes;
  options.stream_idle_timeout = absl::ToChronoNanoseconds(config.stream_idle_timeout);
  options.response_timeout = absl::ToChronoNanoseconds(config.response_timeout);
  options.version = NORMD_VERSION;
  options.cuda = NORMD_CUDA_VERSION;
  options.simd = norm::cpu::SimdTargetName();
  options.lanes = executor.lane_names();
  return options;
}

// How many models serve, and how many failed to load, for the log.
std::string ModelCounts(const ModelRegistry& registry) {
  int loaded = 0;
  int failed = 0;
  for (const ModelStatus& status : registry.List()) ++(status.model != nullptr ? loaded : failed);
  return failed == 0 ? absl::StrCat(loaded) : absl::StrCat(loaded, " (", failed, " failed)");
}

// Calls that wait inside, half received or half answered, cost caches and memory and gain nothing
// once every core has work; but a connection alone must be able to keep the cores busy.
int ConnectionCallsOf(const ServerConfig& config) {
  if (config.max_connection_calls > 0) return config.max_connection_calls;
  return std::max(4, 2 * static_cast<int>(std::thread::hardware_concurrency()));
}

int Serve(const ServerConfig& config) {
  SteadyClock clock;
  const std::unique_ptr<Metrics> metrics = CreateMetrics({NORMD_VERSION, NORMD_CUDA_VERSION});
  metrics->SetLimits({config.max_inflight_bytes, config.max_queue_requests});
  Readiness readiness(*metrics);

  auto backend = CreateBackend(BackendOf(config), *metrics, clock);
  if (!backend.ok()) return StartFailed(backend.status());
  RegistryOptions registry_options;
  registry_options.root = config.model_repository;
  registry_options.max_parameter_bytes = config.max_parameter_bytes;
  registry_options.max_models = config.max_models;
  registry_options.on_change = [&](const std::string& model, bool loaded) {
    readiness.SetModel(model, loaded);
  };
  ModelRegistry registry(registry_options, **backend, *metrics, clock);
  const absl::Status loaded = registry.LoadAll();
  if (!loaded.ok()) return StartFailed(loaded);

  Admission admission({.max_inflight_bytes = config.max_inflight_bytes,
                       .max_inflight_requests = config.max_inflight_requests,
                       .max_connection_share = config.max_connection_share,
                       .max_peer_share = config.max_peer_share,
                       .overdraft_bytes = 2 * config.stream_window_bytes},
                      *metrics);
  std::vector<std::unique_ptr<Lane>> lanes = (*backend)->MakeLanes();
  const bool on_cpu = lanes.front()->device() == "cpu";
  BatchQueue queue(QueueOf(config, on_cpu), clock);
  queue.StageWith((*backend)->stager());
  Executor executor(std::move(lanes), queue, (*backend)->MakeInlineLanes(),
                    on_cpu ? 0 : config.device_small_lanes);
  const std::unique_ptr<RequestLog> request_log = MakeRequestLog(config);
  CallEnvironment environment{ServiceOf(config, executor, on_cpu),
                              registry,
                              admission,
                              queue,
                              *metrics,
                              readiness,
                              clock,
                              request_log.get()};
  NormService service(environment);

  auto exposer = StartExposer(config.metrics_listen, *metrics);
  if (!exposer.ok()) return queue.Close(), StartFailed(exposer.status());
  auto server = Server::Start({config.listen, config.max_request_bytes, ConnectionCallsOf(config),
                               config.max_transport_bytes},
                              service, readiness);
  if (!server.ok()) return queue.Close(), StartFailed(server.status());
  executor.Start([&](const absl::Status& status) {
    spdlog::critical("the last lane has failed, nothing can be computed any more: {}",
                     status.ToString());
    RetireService(readiness, admission, queue);
  });
  readiness.Start();
  const std::string metrics_host =
      config.metrics_listen.substr(0, config.metrics_listen.rfind(':'));
  spdlog::info("serving: grpc={} metrics={}:{} backend=[{}] lanes=[{}] models={}",
               (*server)->address(), metrics_host, (*exposer)->port(), (*backend)->Description(),
               absl::StrJoin(executor.lane_names(), ","), ModelCounts(registry));

  GracefulStop stop({absl::ToChronoNanoseconds(config.lame_duck),
                     absl::ToChronoNanoseconds(config.drain_timeout)},
                    {readiness, admission, queue, environment.active, **server});
  const SignalThread signals(stop);
  if (stop.Run() == GracefulStop::Outcome::kAborted) {
    // A lane may still compute, so nothing that it uses may be taken down.
    std::_Exit(kStoppedEarly);
  }
  queue.Close();
  executor.Join();
  spdlog::info("stopped");
  return kStopped;
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  const auto line = normd::ParseCommandLine(absl::MakeConstSpan(argv + 1, argv + argc));
  if (!line.ok()) {
    std::fprintf(stderr, "normd: %s\n", std::string(line.status().message()).c_str());
    return normd::kWrongCommandLine;
  }
  if (line->help) {
    std::printf("normd %s: normalizes tensors over gRPC\n\n%s", NORMD_VERSION,
                normd::FlagHelp().c_str());
    return normd::kStopped;
  }
  if (line->version) {
    std::printf("normd %s\n", NORMD_VERSION);
    return normd::kStopped;
  }
  // Debian's abseil looks for deadlocks at each lock that gRPC takes, some percent of a call's
  // cost.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  normd::BoundMemoryKept();
  normd::SetUpLog(line->config);
  normd::BlockStopSignals();
  return normd::Serve(line->config);
}
