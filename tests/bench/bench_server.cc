#include "tests/bench/bench_server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "server/part_options.h"
#include "tests/bench/measure.h"

namespace normd {
namespace {

// That of normd with these flags, once `repository` has the one model.
ServerConfig ConfigOf(const testing::TempFolder& repository, const BenchServerOptions& options) {
  repository.Write(options.model + "/config.textproto", options.config);
  std::filesystem::create_directory(repository.File(options.model + "/1"));
  const std::string models = absl::StrCat("--model_repository=", repository.path());
  std::vector<const char*> flags = {models.c_str(), "--device=cpu", "--listen=127.0.0.1:0",
                                    "--http_listen="};
  for (const std::string& flag : options.flags) flags.push_back(flag.c_str());
  return ValueOrExit(ParseCommandLine(flags)).config;
}

std::vector<std::unique_ptr<Lane>> MakeLanes(const BenchServerOptions& options, Backend& backend) {
  std::vector<std::unique_ptr<Lane>> lanes = backend.MakeLanes();
  if (!options.wrap_lane) return lanes;
  for (std::unique_ptr<Lane>& lane : lanes) lane = options.wrap_lane(std::move(lane));
  return lanes;
}

std::vector<std::unique_ptr<Lane>> MakeInlineLanes(const BenchServerOptions& options,
                                                   Backend& backend) {
  if (options.wrap_lane) return {};
  return backend.MakeInlineLanes();
}

}  // namespace

std::vector<std::string> ParseBenchmark(int argc, char** argv) {
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  return {rest.begin() + 1, rest.end()};
}

EchoServer::EchoServer(grpc::Service& service,
                       const std::shared_ptr<grpc::ServerCredentials>& credentials,
                       const std::string& listen)
    : listen_(listen), credentials_(credentials) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, credentials, &port_);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  server_ = builder.BuildAndStart();
}

std::string EchoServer::address() const {
  return absl::StartsWith(listen_, "unix:") ? listen_ : absl::StrCat("127.0.0.1:", port_);
}

BenchTls::BenchTls() {
  CertificateStoreOptions options;
  options.files = {folder_.Write("tls.crt", pki_.server.certificate),
                   folder_.Write("tls.key", pki_.server.key), ""};
  store_ = ValueOrExit(CertificateStore::Create(options, metrics_.ForTls()));
}

std::shared_ptr<grpc::ChannelCredentials> BenchTls::ForClients() const {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = pki_.authority.certificate;
  return grpc::SslCredentials(options);
}

BenchServer::BenchServer(const BenchServerOptions& options)
    : config_(ConfigOf(repository_, options)),
      readiness_(metrics_),
      backend_(ValueOrExit(CreateBackend(BackendOf(config_), metrics_, clock_))),
      registry_(RegistryOf(config_, readiness_), *backend_, metrics_, clock_),
      lanes_(MakeLanes(options, *backend_)),
      on_cpu_(lanes_.front()->device() == "cpu"),
      admission_(AdmissionOf(config_), metrics_),
      queue_(QueueOf(config_, on_cpu_), clock_),
      executor_(std::move(lanes_), queue_, MakeInlineLanes(options, *backend_),
                on_cpu_ ? 0 : config_.device_small_lanes),
      regions_({{}, true}, metrics_.ForRegions(), clock_),
      accept_{LimitsOf(config_, on_cpu_), registry_, admission_, queue_, metrics_, clock_},
      environment_{CallsOf(config_), accept_},
      service_(environment_, readiness_, {}),
      infer_service_(environment_, readiness_, {}) {
  if (config_.shared_memory == "named") accept_.regions = &regions_;
  queue_.StageWith(backend_->stager());
  if (!registry_.LoadAll().ok()) std::exit(1);
  server_ = ValueOrExit(Server::Start(ServingOf(config_, options.tls, 0),
                                      {service_.served(), infer_service_.served()}, environment_,
                                      readiness_));
  executor_.Start([](const absl::Status&) {});
  readiness_.Start();
}

BenchServer::~BenchServer() {
  server_->Shutdown(Duration(0));
  queue_.Close();
  executor_.Join();
}

std::unique_ptr<grpc::GenericStub> ConnectAlone(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
  channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10));
  return std::make_unique<grpc::GenericStub>(channel);
}

void CallOrExit(grpc::GenericStub& stub, const char* method, const std::string& wire,
                std::size_t least_bytes) {
  const grpc::Slice slice(wire.data(), wire.size(), grpc::Slice::STATIC_SLICE);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  Mutex mutex;
  CondVar ended;
  bool done = false;
  grpc::Status status;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&](grpc::Status result) {
                   MutexLock lock(mutex);
                   status = std::move(result);
                   done = true;
                   ended.SignalOne();
                 });
  MutexLock lock(mutex);
  while (!done) ended.Wait(mutex);
  if (status.ok() && response.Length() >= least_bytes) return;
  std::fprintf(stderr, "benchmark: %zu bytes; %s\n", response.Length(),
               status.error_message().c_str());
  std::exit(1);
}

}  // namespace normd
