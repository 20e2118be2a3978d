#include "tests/server/rpc/test_server.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/exec/device/device_backend.h"
#include "tests/support/fake_device.h"

namespace normd::testing {
namespace {

std::string CopyOfTheDemoModels() {
  std::string pattern = ::testing::TempDir() + "/normd_models_XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  const char* elsewhere = std::getenv("NORMD_TEST_MODELS");
  std::filesystem::copy(elsewhere != nullptr ? elsewhere : NORMD_DEMO_MODELS, pattern,
                        std::filesystem::copy_options::recursive);
  return pattern;
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

}  // namespace

TestServer::TestServer(TestServerOptions options)
    : clock_(options.clock != nullptr ? *options.clock : steady_clock_),
      repository_(CopyOfTheDemoModels()),
      credentials_(options.credentials),
      metrics_(CreateMetrics({"test", ""})),
      readiness_(*metrics_, options.without_models),
      backend_(MakeBackend(options, *metrics_, clock_)),
      registry_({.roots = {repository_},
                 .on_change =
                     [this, hook = options.on_change](const std::string& model, bool loaded) {
                       readiness_.SetModel(model, loaded);
                       hook();
                     }},
                *backend_, *metrics_, clock_),
      admission_(options.admission, *metrics_),
      queue_(options.queue, clock_),
      executor_(GatedLanes(*backend_, gate_, options.fail_at_batch, options.lane_error), queue_,
                backend_->MakeInlineLanes()),
      page_locks_(MakePageLocks(options, *metrics_, clock_)),
      regions_({.limits = options.region_limits,
                .named = options.named_regions,
                .device = options.fake_devices > 0 || options.device_memory != nullptr,
                .device_memory = options.device_memory,
                .page_locks = page_locks_.get()},
               metrics_->ForRegions(), clock_),
      accept_{options.accept, registry_, admission_,         queue_,
              *metrics_,      clock_,    options.request_log},
      access_(MakeAccess(options.access, accept_.callers, *metrics_)),
      authorizer_({options.admin, access_.get(), options.audit}, clock_),
      environment_{options.calls, accept_},
      rest_environment_{accept_, environment_.control,
                        InferMethods(
                            accept_, [this] { return readiness_.ready(); }, options.info.version),
                        options.calls.retry_after},
      service_(environment_, readiness_, options.info),
      infer_service_(environment_, readiness_, options.info) {
  accept_.authorizer = &authorizer_;
  if (options.shared_memory) accept_.regions = &regions_;
  queue_.StageWith(backend_->stager());
  gate_.Open();
  EXPECT_TRUE(registry_.LoadAll().ok());
  std::vector<ServedService> services = options.more_services(environment_);
  services.push_back(service_.served());
  services.push_back(infer_service_.served());
  ServerOptions server;
  server.listen = options.listen;
  server.max_request_bytes = options.accept.max_request_bytes;
  server.max_connection_calls = static_cast<int>(options.admission.max_connection_calls);
  server.connections = options.connections;
  server.tls = options.tls;
  server.admin_listen = options.admin_listen;
  server_ = ValueOrDie(Server::Start(server, services, environment_, readiness_));
  if (options.rest.has_value()) {
    options.rest->listen = "127.0.0.1:0";
    rest_ = ValueOrDie(RestServer::Start(*options.rest, rest_environment_));
  }
  executor_.Start([this](const absl::Status&) { RetireService(readiness_, admission_, queue_); });
  readiness_.Start();
  stub_ = v1::NormService::NewStub(NewChannel());
}

TestServer::~TestServer() {
  gate_.Open();
  rest_.reset();
  server_->Shutdown(Duration(0));
  queue_.Close();
  executor_.Join();
  std::filesystem::remove_all(repository_);
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
  return ChannelTo(server_->address(), credentials);
}

std::shared_ptr<grpc::Channel> TestServer::NewAdminChannel() const {
  return ChannelTo(server_->admin_address(), credentials_);
}

void TestServer::WaitIdle() {
  accept_.active.WaitNone(kNever, [] { return false; });
}

double TestServer::Metric(const std::string& series) const {
  for (const absl::string_view line : absl::StrSplit(metrics_->Scrape(), '\n')) {
    double value = 0;
    if (absl::StartsWith(line, series) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      return value;
    }
  }
  return 0;
}

std::size_t TestServer::SeriesCount() const {
  std::size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(metrics_->Scrape(), '\n')) {
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

}  // namespace normd::testing
