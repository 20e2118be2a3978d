#include "tests/bench/bench_server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "tests/bench/measure.h"

namespace normd {
namespace {

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

// Its path, once it has the one model.
std::string Fill(const testing::TempFolder& repository, const BenchServerOptions& options) {
  repository.Write(options.model + "/config.textproto", options.config);
  std::filesystem::create_directory(repository.File(options.model + "/1"));
  return repository.path();
}

}  // namespace

DeviceDefaults::DeviceDefaults(const std::string& device) {
  const bool on_cpu = device == "cpu";
  max_batch_bytes = on_cpu ? std::int64_t{256} << 10 : std::int64_t{2} << 20;
  max_inline_bytes = on_cpu ? std::int64_t{1} << 20 : kMaxDeviceInlineBytes;
  stream_piece_bytes = on_cpu ? StreamLimits().piece_bytes : std::int64_t{4} << 20;
  small_lanes = on_cpu ? 0 : kDeviceSmallLanes;
  spin_wait = on_cpu ? Duration(0) : std::chrono::milliseconds(2);
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
    : readiness_(metrics_),
      backend_(ValueOrExit(CreateBackend(options.backend, metrics_, clock_))),
      registry_({.roots = {Fill(repository_, options)}, .on_change = {}}, *backend_, metrics_,
                clock_),
      admission_({.max_connection_share = 0.5, .max_peer_share = 0.75}, metrics_),
      queue_(options.queue, clock_),
      executor_(MakeLanes(options, *backend_), queue_, MakeInlineLanes(options, *backend_),
                options.small_lanes),
      regions_({{}, true}, metrics_.ForRegions(), clock_),
      accept_{options.accept, registry_, admission_, queue_, metrics_, clock_},
      environment_{{}, accept_},
      service_(environment_, readiness_, {}),
      infer_service_(environment_, readiness_, {}) {
  if (options.shared_memory) accept_.regions = &regions_;
  queue_.StageWith(backend_->stager());
  if (!registry_.LoadAll().ok()) std::exit(1);
  server_ = ValueOrExit(Server::Start({.listen = options.listen, .tls = options.tls},
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
