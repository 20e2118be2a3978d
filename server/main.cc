// normd: puts the parts together and runs them until a signal.
//
// Exit codes: 0 stopped, every accepted request answered; 1 could not start; 2 wrong command line;
// 3 stopped early by a second signal or the drain timeout.

#include <fcntl.h>
#include <grpc/grpc.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
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
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/periodic_thread.h"
#include "base/printable.h"
#include "flags/version.h"
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
#include "server/log/server_log.h"
#include "server/metrics/exposer.h"
#include "server/metrics/metrics.h"
#include "server/metrics/saturation.h"
#include "server/model/registry.h"
#include "server/model/repository_poll.h"
#include "server/net/process_limits.h"
#include "server/net/service_manager.h"
#include "server/part_options.h"
#include "server/rest/rest_environment.h"
#include "server/rest/rest_server.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/graceful_stop.h"
#include "server/rpc/infer_service.h"
#include "server/rpc/library_log.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/probes.h"
#include "server/rpc/readiness.h"
#include "server/rpc/server.h"
#include "server/shared_memory_parts.h"
#include "server/stop_signals.h"
#include "server/tls/certificate_store.h"
#include "server/uncaught.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

enum ExitCode { kStopped = 0, kStartFailed = 1, kWrongCommandLine = 2, kStoppedEarly = 3 };

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

// InvalidArgument if the command line names no device or a file that is missing. Certificates may
// come later, so without them the start fails, and may be tried again.
absl::Status CheckNames(const ServerConfig& config) {
  if (absl::Status status = ParseDevice(config.device).status(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", status.message()));
  }
  const std::pair<const char*, const std::string*> files[] = {{"policy_file", &config.policy_file},
                                                              {"tokens_file", &config.tokens_file}};
  for (const auto& [flag, path] : files) {
    if (path->empty() || access(path->c_str(), F_OK) == 0 || errno != ENOENT) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": \"", Printable(*path), "\": no such file"));
  }
  return absl::OkStatus();
}

// Before there is a log.
int Complain(const absl::Status& status, ExitCode code) {
  LineWriter(STDERR_FILENO, {}).Write(absl::StrCat("normd: ", status.message(), "\n"));
  return code;
}

int StartFailed(const absl::Status& status) {
  spdlog::critical("cannot start: {}", std::string(status.message()));
  return kStartFailed;
}

ServerInfo InfoOf(const ServerConfig& config, const Executor& executor) {
  ServerInfo info;
  info.version = NORMD_VERSION;
  info.cuda = NORMD_CUDA_VERSION;
  info.simd = norm::cpu::SimdTargetName();
  info.lanes = executor.lane_names();
  info.max_inflight_bytes = config.max_inflight_bytes;
  info.shared_memory_listen = config.shared_memory_listen;
  return info;
}

// Null without a policy.
absl::StatusOr<std::unique_ptr<Access>> AccessOf(const ServerConfig& config, Callers& callers,
                                                 Metrics& metrics) {
  if (config.policy_file.empty()) return std::unique_ptr<Access>();
  return Access::Create({config.policy_file, config.tokens_file}, callers, metrics);
}

// Null without a policy.
std::unique_ptr<PeriodicThread> FollowPolicy(Access* access) {
  if (access == nullptr) return nullptr;
  // It logs what is wrong.
  return std::make_unique<PeriodicThread>("policy", std::chrono::seconds(1),
                                          [access] { access->CheckFiles().IgnoreError(); });
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
        WideAddresses(config));
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

std::unique_ptr<RepositoryPoll> FollowRepository(const ServerConfig& config,
                                                 ModelRegistry& registry, Metrics& metrics,
                                                 const Clock& clock) {
  auto poll = std::make_unique<RepositoryPoll>(registry, metrics, clock);
  poll->Watch(absl::ToChronoNanoseconds(config.model_poll_interval));
  return poll;
}

// On SIGHUP. Certificates, tokens and the policy are looked at every second as it is.
void Reload(const ServerConfig& config, ServerLog& log, RepositoryPoll& poll) {
  if (!config.log_file.empty()) log.Reopen(config.log_file);
  spdlog::info("received SIGHUP: looking at the model repository");
  poll.LookSoon();
}

// Where the server is found, for the log.
std::string Addresses(const ServerConfig& config, const Server& server, const RestServer* rest,
                      int metrics_port) {
  const std::string& admin = server.admin_address();
  const std::string metrics_host =
      config.metrics_listen.substr(0, config.metrics_listen.rfind(':'));
  const std::string& handover = config.shared_memory_listen;
  return absl::StrCat("grpc=", server.address(), admin.empty() ? "" : " admin=", admin,
                      " metrics=", metrics_host, ":", metrics_port,
                      rest == nullptr ? "" : absl::StrCat(" http=", rest->address()),
                      handover.empty() ? "" : " shared_memory=", handover);
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

// Its functions borrow all but the config.
ExposerOptions MetricsPortOf(const ServerConfig& config, const CertificateStore* certificates,
                             const Readiness& readiness, const ModelRegistry& registry,
                             const Authorizer& authorizer) {
  ExposerOptions options;
  options.timeout = absl::ToChronoNanoseconds(config.metrics_timeout);
  options.max_connections = static_cast<std::size_t>(config.max_metrics_connections);
  options.probe = [&](absl::string_view path) { return ProbeStatus(path, readiness, registry); };
  options.refuse = [&](const PathRequest& request) { return PathRefusal(request, authorizer); };
  options.tls = MetricsTlsOf(config, certificates);
  // The registry's clock is the steady one, too.
  options.facts = [&] { return FactsOf(readiness, registry, SteadyClock().Now()); };
  return options;
}

// What of `config` does not fit under the limits of the process's mappings and memory is lowered,
// and the log says so. There are no more threads than cores that a control group lets it have.
// ResourceExhausted where no budget would fit, or the parts of a server would find no descriptor.
absl::StatusOr<ServerConfig> FittedToProcess(ServerConfig config) {
  // Somewhat more than the parts of a server on the CPU open before it serves.
  constexpr std::int64_t kLeastDescriptors = 48;
  if (absl::Status few = CheckDescriptorsLeft(kLeastDescriptors); !few.ok()) return few;
  const std::int64_t mappings = MappingsLeft();
  const std::string fewer = FitToMappings(config, mappings);
  if (!fewer.empty()) {
    spdlog::warn("{} mappings are left (vm.max_map_count), of which regions may take half: {}",
                 mappings, fewer);
  }
  const int cores = CoresOfControlGroups();
  if (config.cpu_threads == 0 && cores > 0 &&
      cores < static_cast<int>(std::thread::hardware_concurrency())) {
    config.cpu_threads = cores;
  }
  const std::int64_t threads = SetLittleAside();
  std::int64_t left = MemoryLeft();
  if (left == kNoMemoryLimit) return config;
  left -= threads;
  if (left < kLeastMemoryBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: ", left + threads,
                     " bytes are left (RLIMIT_AS, RLIMIT_DATA, control groups), "
                     "wanted at least ",
                     kLeastMemoryBytes + threads));
  }
  // With --device=auto it is not known yet whether there are devices.
  const bool may_have_devices =
      config.device != "cpu" && !absl::string_view(NORMD_CUDA_VERSION).empty();
  const std::string lowered = FitToMemory(config, left, may_have_devices);
  if (!lowered.empty()) spdlog::warn("{} bytes of memory are left: {}", left, lowered);
  return config;
}

RestEnvironment RestEnvironmentOf(CallEnvironment& environment, const Readiness& readiness) {
  return {environment.accept, environment.control,
          InferMethods(
              environment.accept, [&readiness] { return readiness.ready(); }, NORMD_VERSION),
          environment.options.retry_after};
}

// The parts of a stop, with those of the front end over HTTP if there is one.
GracefulStop::Parts WithRest(GracefulStop::Parts parts, RestServer* rest) {
  if (rest == nullptr) return parts;
  parts.on_drain = [rest] { rest->Drain(); };
  parts.on_close = [rest](Duration grace) { rest->Close(grace); };
  return parts;
}

// Null without an address. Its connections' descriptors come on top of `descriptors`.
absl::StatusOr<std::unique_ptr<RestServer>> RestServerOf(const ServerConfig& config,
                                                         const CertificateStore* certificates,
                                                         RestEnvironment& environment,
                                                         std::int64_t& descriptors) {
  if (config.http_listen.empty()) return std::unique_ptr<RestServer>();
  const RestOptions options = RestOf(config, certificates);
  descriptors += RestDescriptors(options);
  return RestServer::Start(options, environment);
}

// The parts of the server in the order in which they start; they end in the reverse order.
int Serve(const ServerConfig& config, ServerLog& log) {
  SteadyClock clock;
  Metrics metrics({NORMD_VERSION, NORMD_CUDA_VERSION}, MetricsOptions{config.max_model_series});
  metrics.WatchLostLogLines([&log] { return log.lost_lines(); });
  metrics.SetLimits({config.max_inflight_bytes, config.max_queue_requests});
  Readiness readiness(metrics, WithoutModelsOf(config));
  WarnOfPlaintext(config);
  const auto certificates = CertificatesOf(config, metrics);
  if (!certificates.ok()) return StartFailed(certificates.status());

  auto backend = CreateBackend(BackendOf(config), metrics, clock);
  if (!backend.ok()) return StartFailed(backend.status());
  ModelRegistry registry(RegistryOf(config, readiness), **backend, metrics, clock);
  if (absl::Status loaded = registry.LoadAll(); !loaded.ok()) return StartFailed(loaded);

  Admission admission(AdmissionOf(config), metrics);
  std::vector<std::unique_ptr<Lane>> lanes = (*backend)->MakeLanes();
  const bool on_cpu = lanes.front()->device() == "cpu";
  BatchQueue queue(QueueOf(config, on_cpu), clock);
  queue.StageWith((*backend)->stager());
  Saturation saturation([&queue] { return queue.TimeWithoutTaker(); }, clock);
  metrics.WatchSaturation([&saturation] { return saturation.Ratio(); });
  Executor executor(std::move(lanes), queue, (*backend)->MakeInlineLanes(),
                    on_cpu ? 0 : config.device_small_lanes);
  const std::unique_ptr<RequestLog> request_log = MakeRequestLog(config, log);
  SharedMemory shared = SharedMemoryOf(config, **backend, metrics, clock);
  AcceptEnvironment accept{
      LimitsOf(config, on_cpu), registry, admission,           queue, metrics, clock,
      request_log.get(),        nullptr,  shared.regions.get()};
  const auto access = AccessOf(config, accept.callers, metrics);
  if (!access.ok()) return queue.Close(), StartFailed(access.status());
  AuditLog audit(clock, [&log](const std::string& line) { log.WriteRequestLine(line); });
  const Authorizer authorizer({AdminOf(config), access->get(), &audit}, clock);
  accept.authorizer = &authorizer;
  const auto access_watch = FollowPolicy(access->get());
  const auto handover = HandoverOf(config, shared, authorizer, metrics);
  if (!handover.ok()) return queue.Close(), StartFailed(handover.status());
  CallEnvironment environment{CallsOf(config), accept};
  const ServerInfo info = InfoOf(config, executor);
  RestEnvironment rest_environment = RestEnvironmentOf(environment, readiness);
  NormService service(environment, readiness, info);
  InferService infer_service(environment, readiness, info);
  auto exposer =
      StartExposer(config.metrics_listen, metrics,
                   MetricsPortOf(config, certificates->get(), readiness, registry, authorizer));
  if (!exposer.ok()) return queue.Close(), StartFailed(exposer.status());
  const auto rest = RestServerOf(config, certificates->get(), rest_environment, shared.descriptors);
  if (!rest.ok()) return queue.Close(), StartFailed(rest.status());
  auto server = Server::Start(ServingOf(config, certificates->get(), shared.descriptors),
                              {service.served(), infer_service.served()}, environment, readiness);
  if (!server.ok()) return queue.Close(), StartFailed(server.status());
  executor.Start([&](const absl::Status& status) {
    spdlog::critical("the last lane has failed, nothing can be computed any more: {}",
                     status.ToString());
    RetireService(readiness, admission, queue);
  });
  readiness.Start();
  spdlog::info("serving: {} backend=[{}] lanes=[{}] models={}",
               Addresses(config, **server, rest->get(), (*exposer)->port()),
               (*backend)->Description(), absl::StrJoin(executor.lane_names(), ","),
               ModelCounts(registry));
  NotifyServiceManager("READY=1");
  const auto poll = FollowRepository(config, registry, metrics, clock);

  GracefulStop stop({absl::ToChronoNanoseconds(config.lame_duck),
                     absl::ToChronoNanoseconds(config.drain_timeout)},
                    WithRest({readiness, admission, queue, accept.active, **server}, rest->get()));
  const SignalThread signals(stop, [&] { Reload(config, log, *poll); });
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
  normd::EndWithAMessage();
  normd::OpenStandardStreams();
  // The readers of the log or a socket may leave, and a file of the log may reach its limit.
  for (const int of_write : {SIGPIPE, SIGXFSZ}) signal(of_write, SIG_IGN);
  const auto line = normd::ParseCommandLine(absl::MakeConstSpan(argv + 1, argv + argc));
  if (!line.ok()) return normd::Complain(line.status(), normd::kWrongCommandLine);
  if (!line->help && !line->version) {
    const absl::Status status = normd::CheckNames(line->config);
    if (!status.ok()) return normd::Complain(status, normd::kWrongCommandLine);
  }
  if (line->help) {
    std::printf("normd %s: normalizes tensors over gRPC\n\n%s", NORMD_VERSION,
                normd::FlagHelp().c_str());
    return normd::kStopped;
  }
  if (line->version) {
    std::printf("%s\n", normd::VersionText("normd").c_str());
    return normd::kStopped;
  }
  // Debian's abseil looks for deadlocks at each lock that gRPC takes, some percent of a call's
  // cost.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  normd::BoundMemoryKept();
  normd::BlockStopSignals();
  int log_fd = STDERR_FILENO;
  if (!line->config.log_file.empty()) {
    absl::StatusOr<normd::Descriptor> file = normd::OpenLogFile(line->config.log_file);
    if (!file.ok()) return normd::Complain(file.status(), normd::kStartFailed);
    log_fd = file->Release();  // For as long as the process lives.
  }
  normd::ServerLog log(
      log_fd, line->config.log_level,
      line->config.log_format == "json" ? normd::LogFormat::kJson : normd::LogFormat::kText);
  normd::PassOnLibraryLogs();
  const auto fitted = normd::FittedToProcess(line->config);
  // gRPC is not shut down: that takes 10 s where a response once had to wait for its reader.
  if (fitted.ok()) grpc_init();
  const int code = fitted.ok() ? normd::Serve(*fitted, log) : normd::StartFailed(fitted.status());
  log.Flush();
  std::_Exit(code);  // Threads of gRPC's may be left.
}
