#include "client/fleet/fleet_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/fleet/fleet_call.h"
#include "client/fleet/fleet_state.h"

namespace normd::client {
namespace {

absl::Status CheckOptions(const FleetOptions& options) {
  if (options.health_interval <= Duration{0} || options.health_timeout <= Duration{0}) {
    return absl::InvalidArgumentError(
        "health_interval, health_timeout: not above 0, wanted times such as 500ms and 1s");
  }
  if (options.silent_after < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("silent_after: ", options.silent_after, ", wanted 1 or more"));
  }
  if (options.hedge_after < Duration{0}) {
    return absl::InvalidArgumentError("hedge_after: below 0, wanted 0 or more");
  }
  return CheckRetryPolicy(options.retry);
}

// A server that is cut off leaves connections that seem open; normd allows a ping every 10 s.
constexpr Duration kKeepalive = std::chrono::seconds(15);

ServerSet::MakeClient ClientsOf(const ClientOptions& given) {
  return [given](const ServerAddress& address) {
    ClientOptions options = given;
    options.own_connection = true;
    options.retries = false;
    options.keepalive_time = kKeepalive;
    if (options.tls && options.tls->server_name.empty()) options.tls->server_name = address.name;
    return Client::Create(address.target, options);
  };
}

// A stream's entry among its server's calls.
class StreamAttempt final : public Attempt {
 public:
  void Abandon() override {}  // It waits for its own timeout: it cannot be repeated.
};

}  // namespace

absl::StatusOr<std::unique_ptr<FleetClient>> FleetClient::Create(const std::string& servers,
                                                                 const FleetOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto names = ParseServers(servers);
  if (!names.ok()) return names.status();
  auto addresses = options.resolver(*names);
  if (!addresses.ok()) return addresses.status();
  // shared: with the calls and checks in flight.
  auto set =
      std::make_shared<ServerSet>(options.balance, options.silent_after, ClientsOf(options.client));
  if (absl::Status status = set->Update(*addresses); !status.ok()) return status;
  auto state = std::make_shared<FleetState>(options, set);
  auto prober =
      std::make_unique<HealthProber>(set, *std::move(names),
                                     ProberOptions{options.health_interval, options.health_timeout,
                                                   options.resolve_interval, options.resolver});
  {
    MutexLock lock(state->mutex);
    state->prober = std::move(prober);
  }
  return std::unique_ptr<FleetClient>(new FleetClient(std::move(state)));
}

FleetClient::FleetClient(std::shared_ptr<FleetState> state) : state_(std::move(state)) {}

FleetClient::~FleetClient() {
  std::unique_ptr<HealthProber> prober;
  {
    MutexLock lock(state_->mutex);
    state_->closed = true;
    prober = std::move(state_->prober);
  }
}

bool FleetClient::Connect(Duration timeout) {
  const TimePoint now = std::chrono::steady_clock::now();
  return state_->servers->WaitUntilServing(timeout < kNever - now ? now + timeout : kNever);
}

std::shared_ptr<PendingCall> FleetClient::NormalizeAsync(const EncodedRequest& request,
                                                         Duration timeout, Done done) {
  // shared: with its attempts and its alarms.
  auto call = std::make_shared<FleetCall>(state_, request, timeout, std::move(done));
  call->Start();
  return call;
}

std::shared_ptr<PendingCall> FleetClient::NormalizeStreamAsync(
    std::shared_ptr<const StreamedTensor> tensor,
    absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes, StreamDone done) {
  std::shared_ptr<Server> server = state_->servers->Begin(nullptr);
  // gRPC's error says why no call gets through; the next call asks a server that serves.
  if (server == nullptr) server = state_->AnyServer();
  auto attempt = std::make_shared<StreamAttempt>();
  state_->servers->Register(*server, attempt);
  {
    MutexLock lock(state_->mutex);
    ++state_->counted.calls;
    ++state_->counted.attempts;
  }
  Client& client = *server->client;
  return client.NormalizeStreamAsync(std::move(tensor), std::move(on_bytes),
                                     [state = state_, server, attempt, done = std::move(done)](
                                         absl::StatusOr<StreamResult> result) mutable {
                                       if (state->servers->End(*server, attempt, result.status()))
                                         state->Hurry();
                                       std::move(done)(std::move(result));
                                     });
}

std::shared_ptr<Client> FleetClient::AnyServer() {
  const std::shared_ptr<Server> server = state_->AnyServer();
  return {server, server->client.get()};
}

FleetCounts FleetClient::counts() const {
  FleetCounts counts;
  {
    MutexLock lock(state_->mutex);
    counts = state_->counted;
  }
  counts.servers = state_->servers->counts();
  return counts;
}

}  // namespace normd::client
