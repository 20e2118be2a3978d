// normd: puts the parts together and runs them until a signal.
//
// Exit codes: 0 stopped, every accepted request answered; 1 could not start; 2 wrong command line;
// 3 stopped early by a second signal or the drain timeout.

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "kernels/cpu/normalize.h"
#include "server/accept/audit_log.h"
#include "server/accept/authorizer.h"
#include "server/accept/environment.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/config/config.h"
#include "server/config/memory_budget.h"
#include "server/exec/backends.h"
#include "server/exec/executor.h"
#include "server/http/http_tls.h"
#include "server/identity/access.h"
#include "server/identity/access_watch.h"
#include "server/log/server_log.h"
#include "server/metrics/exposer.h"
#include "server/metrics/metrics.h"
#include "server/model/registry.h"
#include "server/net/process_limits.h"
#include "server/net/service_manager.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/graceful_stop.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/infer_service.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/probes.h"
#include "server/rpc/readiness.h"
#include "server/rpc/server.h"
#include "server/tls/certificate_store.h"
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
      NotifyServiceManager("STOPPING=1");
      stop.Signal();
    }
  }

  std::atomic<bool> ending_{false};
  std::thread thread_;  // Last: it uses the flag.
};

// A descriptor that is closed would be the next socket's, to which the log would then be written.
void OpenStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Takes the lowest number that is free.
    if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", O_RDWR) != fd) std::_Exit(kStartFailed);
  }
}

// Null when the flags ask for no line.
std::unique_ptr<RequestLog> MakeRequestLog(const ServerConfig& config, ServerLog& log) {
  RequestLogOptions options;
  options.slow_threshold = absl::ToChronoNanoseconds(config.slow_request_threshold);
  options.sample_every = config.log_sample_every;
  if (options.slow_threshold == Duration(0) && options.sample_every == 0) return nullptr;
  return std::make_unique<RequestLog>(
      options, [&log](const std::string& line) { log.WriteRequestLine(line); });
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

AcceptLimits LimitsOf(const ServerConfig& config, bool on_cpu) {
  AcceptLimits limits;
  limits.max_request_bytes = config.max_request_bytes;
  limits.stream.window_bytes = config.stream_window_bytes;
  if (!on_cpu) limits.stream.piece_bytes = kDevicePieceBytes;
  return limits;
}

CallOptions CallsOf(const ServerConfig& config) {
  CallOptions options;
  options.stream_idle_timeout = absl::ToChronoNanoseconds(config.stream_idle_timeout);
  options.response_timeout = absl::ToChronoNanoseconds(config.response_timeout);
  return options;
}

RegistryOptions RegistryOf(const ServerConfig& config, Readiness& readiness) {
  RegistryOptions options;
  options.root = config.model_repository;
  options.max_parameter_bytes = config.max_parameter_bytes;
  options.max_models = config.max_models;
  options.on_change = [&readiness](const std::string& model, bool loaded) {
    readiness.SetModel(model, loaded);
  };
  return options;
}

AdmissionLimits AdmissionOf(const ServerConfig& config) {
  AdmissionLimits limits;
  limits.max_inflight_bytes = config.max_inflight_bytes;
  limits.max_inflight_requests = config.max_inflight_requests;
  limits.max_connection_share = config.max_connection_share;
  limits.max_peer_share = config.max_peer_share;
  limits.overdraft_bytes = 2 * config.stream_window_bytes;
  return limits;
}

ServerInfo InfoOf(const ServerConfig& config, const Executor& executor) {
  ServerInfo info;
  info.version = NORMD_VERSION;
  info.cuda = NORMD_CUDA_VERSION;
  info.simd = norm::cpu::SimdTargetName();
  info.lanes = executor.lane_names();
  info.max_inflight_bytes = config.max_inflight_bytes;
  return info;
}

// Null without a policy.
absl::StatusOr<std::unique_ptr<Access>> AccessOf(const ServerConfig& config, Callers& callers,
                                                 Metrics& metrics) {
  if (config.policy_file.empty()) return std::unique_ptr<Access>();
  return Access::Create({config.policy_file, config.tokens_file}, callers, metrics);
}

AdminCalls AdminOf(const ServerConfig& config) {
  switch (DecideAdminPlace(config)) {
    case AdminPlace::kEverywhere: return AdminCalls::kAll;
    case AdminPlace::kAdminListener: return AdminCalls::kOfAdminListener;
    case AdminPlace::kNowhere: break;
  }
  if (config.admin == "auto") {
    spdlog::info(
        "loads and unloads are refused: {} can be reached from elsewhere, and no --policy_file "
        "says who may make them (--admin, --admin_listen)",
        config.listen);
  }
  return AdminCalls::kNone;
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

ConnectionOptions ConnectionsOf(const ServerConfig& config) {
  ConnectionOptions options;
  options.max_connections = config.max_connections;
  options.max_peer_connections = config.max_peer_connections;
  options.handshake_timeout = absl::ToChronoNanoseconds(config.handshake_timeout);
  options.message_timeout = absl::ToChronoNanoseconds(config.message_timeout);
  options.min_bytes_per_second = config.min_message_rate;
  options.keepalive_time = absl::ToChronoNanoseconds(config.keepalive_time);
  options.keepalive_timeout = absl::ToChronoNanoseconds(config.keepalive_timeout);
  options.min_ping_interval = absl::ToChronoNanoseconds(config.min_ping_interval);
  options.max_idle = absl::ToChronoNanoseconds(config.max_connection_idle);
  options.max_age = absl::ToChronoNanoseconds(config.max_connection_age);
  options.max_age_grace = absl::ToChronoNanoseconds(config.max_connection_age_grace);
  return options;
}

// In one line, however many they are.
void WarnOfPlaintext(const ServerConfig& config) {
  std::vector<std::string> ports;
  for (const OpenListener& open : ListenersInTheClear(config)) {
    ports.push_back(absl::StrCat("--", open.flag, "=", open.address));
  }
  if (ports.empty()) return;
  spdlog::warn("--insecure: without TLS, whoever is on the way reads and changes what passes at {}",
               absl::StrJoin(ports, ", "));
}

// Null without TLS.
absl::StatusOr<std::unique_ptr<CertificateStore>> CertificatesOf(const ServerConfig& config,
                                                                 Metrics& metrics) {
  if (config.tls_cert.empty()) return std::unique_ptr<CertificateStore>();
  CertificateStoreOptions options;
  options.files = {config.tls_cert, config.tls_key, config.tls_client_ca};
  const std::string& auth = config.tls_client_auth;
  if (auth == "require" || (auth == "auto" && !config.tls_client_ca.empty())) {
    options.policy.client_auth = ClientAuth::kRequire;
  } else if (auth == "allow") {
    options.policy.client_auth = ClientAuth::kAllow;
  }
  if (config.tls_min_version == "1.3") options.policy.min_version = TlsVersion::k13;
  auto store = CertificateStore::Create(std::move(options), metrics.ForTls());
  if (store.ok()) (*store)->Watch();
  return store;
}

// Null: the metrics port speaks no TLS.
HttpTlsContext MetricsTlsOf(const ServerConfig& config, const CertificateStore* store) {
  if (store == nullptr || !config.metrics_tls) return nullptr;
  return [store] { return store->current()->context; };
}

// What of `config` does not fit under the limits of the process's memory is lowered, and the log
// says so.
ServerConfig FittedToMemory(ServerConfig config) {
  const std::int64_t left = MemoryLeft();
  if (left == kNoMemoryLimit) return config;
  const std::string lowered = FitToMemory(config, left);
  if (!lowered.empty()) spdlog::warn("{} bytes of memory are left: {}", left, lowered);
  return config;
}

ServerOptions ServingOf(const ServerConfig& config, const CertificateStore* tls) {
  return {config.listen,
          config.max_request_bytes,
          ConnectionCallsOf(config),
          config.max_transport_bytes,
          ConnectionsOf(config),
          config.admin_listen,
          tls};
}

// The parts of the server in the order in which they start; they end in the reverse order.
int Serve(const ServerConfig& given, ServerLog& log) {
  const ServerConfig config = FittedToMemory(given);
  SteadyClock clock;
  const std::unique_ptr<Metrics> metrics =
      CreateMetrics({NORMD_VERSION, NORMD_CUDA_VERSION}, MetricsOptions{config.max_model_series});
  metrics->WatchLostLogLines([&log] { return log.lost_lines(); });
  metrics->SetLimits({config.max_inflight_bytes, config.max_queue_requests});
  Readiness readiness(*metrics);
  WarnOfPlaintext(config);
  const auto certificates = CertificatesOf(config, *metrics);
  if (!certificates.ok()) return StartFailed(certificates.status());

  auto backend = CreateBackend(BackendOf(config), *metrics, clock);
  if (!backend.ok()) return StartFailed(backend.status());
  ModelRegistry registry(RegistryOf(config, readiness), **backend, *metrics, clock);
  const absl::Status loaded = registry.LoadAll();
  if (!loaded.ok()) return StartFailed(loaded);

  Admission admission(AdmissionOf(config), *metrics);
  std::vector<std::unique_ptr<Lane>> lanes = (*backend)->MakeLanes();
  const bool on_cpu = lanes.front()->device() == "cpu";
  BatchQueue queue(QueueOf(config, on_cpu), clock);
  queue.StageWith((*backend)->stager());
  Executor executor(std::move(lanes), queue, (*backend)->MakeInlineLanes(),
                    on_cpu ? 0 : config.device_small_lanes);
  const std::unique_ptr<RequestLog> request_log = MakeRequestLog(config, log);
  AcceptEnvironment accept{LimitsOf(config, on_cpu), registry, admission, queue, *metrics, clock,
                           request_log.get()};
  const auto access = AccessOf(config, accept.callers, *metrics);
  if (!access.ok()) return queue.Close(), StartFailed(access.status());
  AuditLog audit(clock, [&log](const std::string& line) { log.WriteRequestLine(line); });
  const Authorizer authorizer({AdminOf(config), access->get(), &audit}, clock);
  accept.authorizer = &authorizer;
  std::optional<AccessWatch> access_watch;
  if (*access != nullptr) access_watch.emplace(**access);
  CallEnvironment environment{CallsOf(config), accept};
  const ServerInfo info = InfoOf(config, executor);
  NormService service(environment, readiness, info);
  InferService infer_service(environment, readiness, info);

  auto exposer =
      StartExposer(config.metrics_listen, *metrics,
                   {absl::ToChronoNanoseconds(config.metrics_timeout),
                    static_cast<std::size_t>(config.max_metrics_connections),
                    [&](absl::string_view path) { return ProbeStatus(path, readiness, registry); },
                    [&](const PathRequest& request) { return PathRefusal(request, authorizer); },
                    MetricsTlsOf(config, certificates->get())});
  if (!exposer.ok()) return queue.Close(), StartFailed(exposer.status());
  auto server = Server::Start(ServingOf(config, certificates->get()),
                              {service.served(), infer_service.served()}, environment, readiness);
  if (!server.ok()) return queue.Close(), StartFailed(server.status());
  executor.Start([&](const absl::Status& status) {
    spdlog::critical("the last lane has failed, nothing can be computed any more: {}",
                     status.ToString());
    RetireService(readiness, admission, queue);
  });
  readiness.Start();
  const std::string metrics_host =
      config.metrics_listen.substr(0, config.metrics_listen.rfind(':'));
  const std::string& admin = (*server)->admin_address();
  spdlog::info("serving: grpc={}{} metrics={}:{} backend=[{}] lanes=[{}] models={}",
               (*server)->address(), admin.empty() ? "" : " admin=" + admin, metrics_host,
               (*exposer)->port(), (*backend)->Description(),
               absl::StrJoin(executor.lane_names(), ","), ModelCounts(registry));
  NotifyServiceManager("READY=1");

  GracefulStop stop({absl::ToChronoNanoseconds(config.lame_duck),
                     absl::ToChronoNanoseconds(config.drain_timeout)},
                    {readiness, admission, queue, accept.active, **server});
  const SignalThread signals(stop);
  if (stop.Run() == GracefulStop::Outcome::kAborted) {
    // A lane may still compute, so nothing that it uses may be taken down.
    log.Flush();
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
  normd::OpenStandardStreams();
  // Whoever reads the log or a socket may leave.
  signal(SIGPIPE, SIG_IGN);
  const auto line = normd::ParseCommandLine(absl::MakeConstSpan(argv + 1, argv + argc));
  if (!line.ok()) {
    normd::LineWriter(STDERR_FILENO, {})
        .Write(absl::StrCat("normd: ", line.status().message(), "\n"));
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
  normd::BlockStopSignals();
  normd::ServerLog log(STDERR_FILENO, line->config.log_level);
  normd::PassOnGrpcLog();
  return normd::Serve(line->config, log);
}
