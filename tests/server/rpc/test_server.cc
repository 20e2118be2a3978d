#include "tests/server/rpc/test_server.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/exec/backends.h"
#include "server/exec/device/device_backend.h"
#include "server/exec/executor.h"
#include "server/rest/rest_server.h"
#include "server/rpc/infer_service.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/server.h"
#include "tests/support/fake_device.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_repository.h"

namespace normd::testing {
namespace {

std::string CopyTheDemoModels(const std::string& folder) {
  const char* elsewhere = std::getenv("NORMD_TEST_MODELS");
  std::filesystem::copy(elsewhere != nullptr ? elsewhere : NORMD_DEMO_MODELS, folder,
                        std::filesystem::copy_options::recursive);
  return folder;
}

template <typename T>
T ValueOrDie(absl::StatusOr<T> result) {
  if (!result.ok()) ADD_FAILURE() << result.status();
  return std::move(result).value();
}

std::unique_ptr<Backend> MakeFakeDevices(const TestServerOptions& options, Metrics& metrics,
                                         const Clock& clock) {
  DeviceBackendOptions backend;
  backend.lanes_per_device = 1;
  backend.pool_bytes = 4 << 20;
  backend.lane.arena_bytes = 4 << 20;
  backend.lane.chunk_bytes = 64 << 10;
  backend.lane.mapped_bytes = options.fake_mapped_bytes;
  backend.shared_memory = options.device_memory != nullptr;
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < options.fake_devices; ++i) {
    auto device = std::make_unique<FakeDevice>(absl::StrCat("fake:", i));
    device->LetLaunchesGrow();
    if (options.page_locker != nullptr) {
      device->WatchCopies([locker = options.page_locker](const std::byte* host, std::size_t bytes) {
        locker->Touch(host, bytes);
      });
    }
    devices.push_back(std::move(device));
  }
  return ValueOrDie(DeviceBackend::Create(std::move(devices), backend, metrics, clock));
}

std::unique_ptr<Backend> MakeBackend(const TestServerOptions& options, Metrics& metrics,
                                     const Clock& clock) {
  if (options.fake_devices > 0) return MakeFakeDevices(options, metrics, clock);
  BackendOptions backend;
  backend.device = options.device;
  backend.cpu_lanes = options.cpu_lanes;
  backend.max_inline_bytes = options.queue.max_inline_bytes;
  return ValueOrDie(CreateBackend(backend, metrics, clock));
}

std::vector<std::unique_ptr<Lane>> GatedLanes(Backend& backend, Gate& gate, int fail_at_batch,
                                              const absl::Status& error) {
  std::vector<std::unique_ptr<Lane>> lanes;
  for (std::unique_ptr<Lane>& lane : backend.MakeLanes()) {
    if (fail_at_batch >= 0) {
      lane = std::make_unique<FaultyLane>(std::move(lane), fail_at_batch, error);
    }
    lanes.push_back(std::make_unique<PausingLane>(std::move(lane), gate));
  }
  return lanes;
}

std::unique_ptr<PageLocks> MakePageLocks(const TestServerOptions& options, Metrics& metrics,
                                         const Clock& clock) {
  if (options.page_locker == nullptr) return nullptr;
  return std::make_unique<PageLocks>(*options.page_locker, options.page_lock_limits,
                                     metrics.ForRegions(), clock);
}

std::unique_ptr<Access> MakeAccess(const AccessFiles& files, Callers& callers, Metrics& metrics) {
  if (files.policy.empty()) return nullptr;
  return ValueOrDie(Access::Create(files, callers, metrics));
}

std::shared_ptr<grpc::Channel> ChannelTo(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

TestServer& WithItsGateClosed(TestServer& server) {
  server.gate().Close();
  return server;
}

}  // namespace

// All that the server is made of, in the order in which it is constructed.
struct TestServer::Parts {
  explicit Parts(TestServerOptions options);
  ~Parts();

  SteadyClock steady_clock;
  Clock& clock;
  const TempFolder folder;
  const std::string repository;
  const std::shared_ptr<grpc::ChannelCredentials> credentials;
  Metrics metrics;
  Readiness readiness;
  std::unique_ptr<Backend> backend;
  ModelRegistry registry;
  Admission admission;
  BatchQueue queue;
  Gate gate;
  Executor executor;
  std::unique_ptr<PageLocks> page_locks;
  RegionRegistry regions;
  AcceptEnvironment accept;
  const std::unique_ptr<Access> access;
  const Authorizer authorizer;
  CallEnvironment environment;
  RestEnvironment rest_environment;
  std::unique_ptr<RestServer> rest;
  NormService service;
  InferService infer_service;
  std::unique_ptr<Server> server;
};

TestServer::Parts::Parts(TestServerOptions options)
    : clock(options.clock != nullptr ? *options.clock : steady_clock),
      repository(CopyTheDemoModels(folder.path())),
      credentials(options.credentials),
      readiness(metrics, options.without_models),
      backend(MakeBackend(options, metrics, clock)),
      registry({.roots = {repository},
                .on_change =
                    [this, hook = options.on_change](const std::string& model, bool loaded) {
                      readiness.SetModel(model, loaded);
                      hook();
                    }},
               *backend, metrics, clock),
      admission(options.admission, metrics),
      queue(options.queue, clock),
      executor(GatedLanes(*backend, gate, options.fail_at_batch, options.lane_error), queue,
               backend->MakeInlineLanes()),
      page_locks(MakePageLocks(options, metrics, clock)),
      regions({.limits = options.region_limits,
               .named = options.named_regions,
               .device = options.fake_devices > 0 || options.device_memory != nullptr,
               .device_memory = options.device_memory,
               .page_locks = page_locks.get()},
              metrics.ForRegions(), clock),
      accept{options.accept, registry, admission, queue, metrics, clock, options.request_log},
      access(MakeAccess(options.access, accept.callers, metrics)),
      authorizer({options.admin, access.get(), options.audit}, clock),
      environment{options.calls, accept},
      rest_environment{accept, environment.control,
                       InferMethods(
                           accept, [this] { return readiness.ready(); }, options.info.version),
                       options.calls.retry_after},
      service(environment, readiness, options.info),
      infer_service(environment, readiness, options.info) {
  accept.authorizer = &authorizer;
  if (options.shared_memory) accept.regions = &regions;
  queue.StageWith(backend->stager());
  gate.Open();
  EXPECT_TRUE(registry.LoadAll().ok());
  const std::vector<ServedService> services = {service.served(), infer_service.served()};
  ServerOptions server_options;
  server_options.listen = options.listen;
  server_options.max_request_bytes = options.accept.max_request_bytes;
  server_options.max_connection_calls = static_cast<int>(options.admission.max_connection_calls);
  server_options.connections.handshake_timeout = options.handshake_timeout;
  server_options.tls = options.tls;
  server_options.admin_listen = options.admin_listen;
  server = ValueOrDie(Server::Start(server_options, services, environment, readiness));
  if (options.rest.has_value()) {
    options.rest->listen = "127.0.0.1:0";
    rest = ValueOrDie(RestServer::Start(*options.rest, rest_environment));
  }
  executor.Start([this](const absl::Status&) { RetireService(readiness, admission, queue); });
  readiness.Start();
}

TestServer::Parts::~Parts() {
  gate.Open();
  rest.reset();
  server->Shutdown(Duration(0));
  queue.Close();
  executor.Join();
}

TestServer::TestServer(TestServerOptions options)
    : parts_(std::make_unique<Parts>(std::move(options))),
      stub_(v1::NormService::NewStub(NewChannel())) {}

TestServer::~TestServer() = default;

int TestServer::port() const { return parts_->server->port(); }
int TestServer::http_port() const { return parts_->rest->port(); }
Access& TestServer::access() { return *parts_->access; }
const Authorizer& TestServer::authorizer() const { return parts_->authorizer; }
const std::string& TestServer::repository() const { return parts_->repository; }
Gate& TestServer::gate() { return parts_->gate; }
TaskThread& TestServer::lists() { return parts_->environment.control.lists; }
const ModelRegistry& TestServer::registry() const { return parts_->registry; }
const BatchQueue& TestServer::queue() const { return parts_->queue; }

GracefulStop::Parts TestServer::stop_parts() {
  Parts& all = *parts_;
  GracefulStop::Parts parts{all.readiness, all.admission, all.queue, all.accept.active,
                            *all.server};
  if (RestServer* const rest = all.rest.get()) {
    parts.on_drain = [rest] { rest->Drain(); };
    parts.on_close = [rest](Duration grace) { rest->Close(grace); };
  }
  return parts;
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel() const {
  return NewChannel(parts_->credentials);
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
  return ChannelTo(parts_->server->address(), credentials);
}

std::shared_ptr<grpc::Channel> TestServer::NewAdminChannel() const {
  return ChannelTo(parts_->server->admin_address(), parts_->credentials);
}

void TestServer::WaitIdle() {
  parts_->accept.active.WaitNone(kNever, [] { return false; });
}

std::vector<double> TestServer::Values(const std::string& series) const {
  std::vector<double> values;
  for (const absl::string_view line : absl::StrSplit(parts_->metrics.Scrape(), '\n')) {
    double value = 0;
    if (absl::StartsWith(line, series) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      values.push_back(value);
    }
  }
  return values;
}

double TestServer::Metric(const std::string& series) const {
  const std::vector<double> values = Values(series);
  return values.empty() ? 0 : values.front();
}

double TestServer::MetricSum(const std::string& series) const {
  const std::vector<double> values = Values(series);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::size_t TestServer::SeriesCount() const {
  std::size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(parts_->metrics.Scrape(), '\n')) {
    count += !line.empty() && line[0] != '#' ? 1 : 0;
  }
  return count;
}

v1::NormalizeRequest MakeRequest(const std::string& model, const std::vector<std::int64_t>& shape,
                                 std::uint64_t seed) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : shape) elements *= dim;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::string data(static_cast<std::size_t>(elements) * sizeof(float), '\0');
  for (std::size_t i = 0; i < data.size(); i += sizeof(float)) {
    const float value = normal(random);
    std::memcpy(data.data() + i, &value, sizeof(float));
  }
  v1::NormalizeRequest request;
  request.set_model(model);
  v1::Tensor& input = *request.add_inputs();
  input.set_dtype(v1::FLOAT32);
  input.mutable_shape()->Assign(shape.begin(), shape.end());
  input.set_data(std::move(data));
  return request;
}

v1::NormalizeRequest MakeRequest(const std::string& model, const std::vector<std::int64_t>& shape,
                                 const std::vector<std::string>& names, std::uint64_t seed) {
  v1::NormalizeRequest request;
  request.set_model(model);
  for (const std::string& name : names) {
    *request.add_inputs() = MakeRequest(model, shape, seed++).inputs(0);
    request.mutable_inputs()->rbegin()->set_name(name);
  }
  return request;
}

grpc::Status Normalize(TestServer& server, const v1::NormalizeRequest& request,
                       v1::NormalizeResponse* response) {
  grpc::ClientContext context;
  v1::NormalizeResponse unused;
  return server.stub().Normalize(&context, request, response != nullptr ? response : &unused);
}

v1::NormalizeResponse Normalized(TestServer& server, const v1::NormalizeRequest& request) {
  v1::NormalizeResponse response;
  const grpc::Status status = Normalize(server, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

grpc::Status LoadModel(TestServer& server, const std::string& model) {
  grpc::ClientContext context;
  v1::LoadModelRequest request;
  request.set_model(model);
  v1::LoadModelResponse response;
  return server.stub().LoadModel(&context, request, &response);
}

void AddModel(TestServer& server, const std::string& model, const v1::ModelConfig& config,
              const std::map<std::string, client::Tensor>& parameters) {
  test::WriteModel(server.repository(), model, config, parameters);
  const grpc::Status status = LoadModel(server, model);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

std::string Trailing(const grpc::ClientContext& context, const std::string& key) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(key);
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

AsyncCall::AsyncCall(v1::NormService::Stub& stub, v1::NormalizeRequest message)
    : request(std::move(message)) {
  stub.async()->Normalize(&context, &request, &response, [this](grpc::Status result) {
    MutexLock lock(mutex_);
    status = std::move(result);
    done_ = true;
    ended_.SignalAll();
  });
}

AsyncCall::~AsyncCall() { Wait(); }

const grpc::Status& AsyncCall::Wait() {
  MutexLock lock(mutex_);
  while (!done_) ended_.Wait(mutex_);
  return status;
}

StalledCall::StalledCall(TestServer& server, v1::NormalizeRequest message)
    : AsyncCall(WithItsGateClosed(server).stub(), std::move(message)) {
  server.gate().WaitForStalled(1);
}

}  // namespace normd::testing
