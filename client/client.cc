#include "client/client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/retry_hint.h"
#include "client/stream_protocol.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "inference/grpc_service.grpc.pb.h"

namespace normd::client {
namespace {

const char kNormalizeMethod[] = "/normd.v1.NormService/Normalize";
const char kModelInferMethod[] = "/inference.GRPCInferenceService/ModelInfer";
const char kNormalizeStreamMethod[] = "/normd.v1.NormService/NormalizeStream";

// The pause before the second attempt to connect, and Connect's limit for that attempt.
constexpr int kFirstBackoffMs = 100;
constexpr std::chrono::milliseconds kSecondAttempt{500};

constexpr int kKeepaliveTimeoutMs = 10000;

absl::Status ToAbsl(const grpc::Status& status, const std::string& target) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string message = status.error_message();
  // gRPC itself makes these two messages, which do not name the server.
  if (absl::StartsWith(message, "failed to connect") ||
      absl::StartsWith(message, "DNS resolution failed")) {
    return absl::Status(code, absl::StrCat("cannot reach ", target, ": ", message));
  }
  if (code == absl::StatusCode::kDeadlineExceeded && message == "Deadline Exceeded") {
    return absl::Status(code, absl::StrCat("no response from ", target, " in time"));
  }
  return absl::Status(code, message);
}

// The outcome of a stream: an error on this side, the call's error, or its result.
absl::StatusOr<StreamResult> EndOfStream(const absl::Status& status, const grpc::Status& ended,
                                         StreamResult result, const std::string& target) {
  if (!status.ok()) return status;
  if (!ended.ok()) return ToAbsl(ended, target);
  if (!result.complete) return BrokenResponse("ends without a trailer");
  return result;
}

// One interceptor if a token goes with each call, else none.
absl::StatusOr<Interceptors> InterceptorsOf(const std::string& target,
                                            const ClientOptions& options) {
  if (options.token_file.empty()) return Interceptors();
  if (!options.tls && !IsLocalTarget(target)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_file: without TLS, wanted --tls or a server on this machine: a token "
                     "is not sent to ",
                     target, " in the clear"));
  }
  const absl::StatusOr<std::string> token = ReadToken(options.token_file);
  if (!token.ok()) return token.status();
  return SendToken(*token);
}

// gRPC ends its callback threads with the process's last channel: the thread that releases that
// channel waits for them. A call may release it last, on one of those threads, which would then
// wait for itself. So one channel, over which nothing can be sent, stays until the process ends.
void KeepCallbackThreads() {
  struct Keeper {
    grpc::GenericStub stub{grpc::CreateChannel("", /*creds=*/nullptr)};
    grpc::ClientContext context;
    const grpc::Slice nothing;
    const grpc::ByteBuffer request{&nothing, 1};
    grpc::ByteBuffer response;
  };
  // volatile: nothing reads it, but it keeps leak checkers quiet.
  static Keeper* volatile keeper = [] {
    auto* made = new Keeper;
    // A channel uses these threads from its first call on; this one fails at once.
    made->stub.UnaryCall(&made->context, kNormalizeMethod, grpc::StubOptions(), &made->request,
                         &made->response, [](const grpc::Status&) {});
    return made;
  }();
  static_cast<void>(keeper);
}

template <typename Stub, typename Request, typename Response>
using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

// A request that names a version of a model.
template <typename Request>
Request Naming(absl::string_view model, std::int64_t version) {
  Request request;
  request.set_model(std::string(model));
  request.set_version(version);
  return request;
}

// The model in a response.
template <typename Response>
absl::StatusOr<v1::ModelInfo> ModelIn(absl::StatusOr<Response> response) {
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_model());
}

// The result of a call that ends on one of gRPC's threads, for a thread that waits for it.
template <typename Result>
class Awaited {
 public:
  void Set(absl::StatusOr<Result> result) {
    // Signalled under the lock: otherwise the waiter could be gone before the signal.
    MutexLock lock(mutex_);
    result_.emplace(std::move(result));
    arrived_.SignalAll();
  }
  absl::StatusOr<Result> Wait() {
    MutexLock lock(mutex_);
    while (!result_.has_value()) arrived_.Wait(mutex_);
    return *std::move(result_);
  }

 private:
  Mutex mutex_;
  CondVar arrived_;
  std::optional<absl::StatusOr<Result>> result_ ABSL_GUARDED_BY(mutex_);
};

struct Connection {
  std::string target;
  std::shared_ptr<grpc::Channel> channel;  // shared: with the stubs.
};

// One Normalize or ModelInfer call: everything that gRPC reads and writes until it has ended.
struct NormalizeCall final : PendingCall {
  NormalizeCall(std::shared_ptr<const Connection> c, const EncodedRequest& r, Client::Done d)
      : connection(std::move(c)),
        protocol(r.protocol()),
        shared(r.shared()),
        done(std::move(d)),
        request(r.message()) {}

  void Cancel() override { context.TryCancel(); }

  void Finish(const grpc::Status& status) {
    request.Clear();
    if (status.ok()) {
      std::move(done)(NormalizeResponse::Decode(response, protocol, shared));
    } else {
      absl::Status error = ToAbsl(status, connection->target);
      SetRetryHint(context, error);
      std::move(done)(std::move(error));
    }
  }

  // shared: the client may be gone before the call ends.
  const std::shared_ptr<const Connection> connection;
  const Protocol protocol;
  const std::shared_ptr<const SharedTensors> shared;  // shared: with the request.
  Client::Done done;
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

// Whether the target ends with a port, or is a socket's path. The system's resolver takes numbers
// modulo 65536, so one above 65535 would reach another server.
bool HasPort(absl::string_view target) {
  const std::size_t colon = target.rfind(':');
  if (colon == absl::string_view::npos || colon + 1 == target.size()) return false;
  const absl::string_view port = target.substr(colon + 1);
  const bool number = port.find_first_not_of("+- 0123456789") == absl::string_view::npos;
  std::uint32_t value = 0;
  if (absl::StartsWith(target, "unix:") || absl::StartsWith(target, "unix-abstract:") || !number)
    return true;
  return absl::SimpleAtoi(port, &value) && value <= 65535;
}

}  // namespace

struct Client::Impl {
  std::shared_ptr<const Connection> connection;  // shared: with the calls in flight.
  std::unique_ptr<v1::NormService::Stub> stub;
  std::unique_ptr<inference::GRPCInferenceService::Stub> inference_stub;
  std::unique_ptr<grpc::GenericStub> generic_stub;

  // Runs one of a stub's blocking functions.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(Stub& from, Method<Stub, Request, Response> method,
                                const Request& request, Duration timeout,
                                grpc::ClientContext&& context = {}) {
    SetTimeout(context, timeout);
    Response response;
    const grpc::Status status = (from.*method)(&context, request, &response);
    if (!status.ok()) return ToAbsl(status, connection->target);
    return response;
  }
  // Unregisters memory, and waits until no request uses it.
  template <typename Request, typename Response>
  absl::Status Unregister(Method<inference::GRPCInferenceService::Stub, Request, Response> method,
                          const std::string& name, Duration timeout) {
    grpc::ClientContext context;
    context.AddMetadata("normd-in-use", "wait");
    Request request;
    request.set_name(name);
    return Call(*inference_stub, method, request, timeout, std::move(context)).status();
  }
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const std::string& target,
                                                       const ClientOptions& options) {
  if (!HasPort(target)) {
    return absl::InvalidArgumentError(absl::StrCat("server: \"", target,
                                                   "\", wanted an address with a port up to 65535, "
                                                   "such as 127.0.0.1:8001"));
  }
  KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  if (!options.retries) arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (options.keepalive_time > Duration{0}) {
    using Milliseconds = std::chrono::milliseconds;
    const auto ms = std::chrono::duration_cast<Milliseconds>(options.keepalive_time).count();
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(ms));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  }
  if (options.tls && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
    arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, options.tls->server_name);
  }
  const auto credentials = MakeChannelCredentials(options.tls);
  if (!credentials.ok()) return credentials.status();
  absl::StatusOr<Interceptors> interceptors = InterceptorsOf(target, options);
  if (!interceptors.ok()) return interceptors.status();
  auto impl = std::make_unique<Impl>();
  const auto channel = grpc::experimental::CreateCustomChannelWithInterceptors(
      target, *credentials, arguments, *std::move(interceptors));
  impl->connection = std::make_shared<Connection>(Connection{target, channel});
  impl->stub = v1::NormService::NewStub(channel);
  impl->inference_stub = inference::GRPCInferenceService::NewStub(channel);
  impl->generic_stub = std::make_unique<grpc::GenericStub>(channel);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

const std::string& Client::target() const { return impl_->connection->target; }

bool Client::Connect(Duration timeout) {
  grpc::Channel& channel = *impl_->connection->channel;
  auto end = DeadlineOf(timeout);
  bool has_failed = false;
  for (;;) {
    const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_SHUTDOWN) return false;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !std::exchange(has_failed, true)) {
      end = std::min(end, DeadlineOf(kSecondAttempt));
    }
    if (!channel.WaitForStateChange(state, end)) return false;
  }
}

std::shared_ptr<PendingCall> Client::NormalizeAsync(const EncodedRequest& request, Duration timeout,
                                                    Done done) {
  // shared: the caller may cancel while the call lives, or after it has ended.
  auto call = std::make_shared<NormalizeCall>(impl_->connection, request, std::move(done));
  SetTimeout(call->context, timeout);
  const char* const method =
      request.protocol() == Protocol::kNormd ? kNormalizeMethod : kModelInferMethod;
  impl_->generic_stub->UnaryCall(&call->context, method, grpc::StubOptions(), &call->request,
                                 &call->response,
                                 [call](const grpc::Status& status) { call->Finish(status); });
  return call;
}

absl::StatusOr<std::shared_ptr<PendingCall>> Client::NormalizeAsync(const NormalizeRequest& request,
                                                                    Done done) {
  const absl::StatusOr<EncodedRequest> encoded = EncodedRequest::Create(request);
  if (!encoded.ok()) return encoded.status();
  return NormalizeAsync(*encoded, request.timeout, std::move(done));
}

absl::StatusOr<NormalizeResponse> Client::Normalize(const NormalizeRequest& request) {
  Awaited<NormalizeResponse> reply;
  const auto call = NormalizeAsync(request, [&reply](absl::StatusOr<NormalizeResponse> response) {
    reply.Set(std::move(response));
  });
  if (!call.ok()) return call.status();
  return reply.Wait();
}

absl::StatusOr<StreamResult> Client::NormalizeStream(const StreamRequest& request,
                                                     StreamReader reader, StreamWriter writer) {
  StreamTransport transport(*impl_->generic_stub, kNormalizeStreamMethod, request.timeout);
  StreamResult result;
  const absl::Status status = RunStream(transport, request, reader, writer, result);
  if (!status.ok()) transport.Cancel();
  const grpc::Status ended = transport.Finish();
  return EndOfStream(status, ended, std::move(result), target());
}

std::shared_ptr<PendingCall> Client::NormalizeStreamAsync(
    std::shared_ptr<const StreamedTensor> tensor,
    absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes, StreamDone done) {
  StreamHandlers handlers;
  handlers.on_bytes = std::move(on_bytes);
  handlers.done = [connection = impl_->connection, done = std::move(done)](
                      const absl::Status& status, const grpc::Status& ended,
                      StreamResult result) mutable {
    std::move(done)(EndOfStream(status, ended, std::move(result), connection->target));
  };
  return StartStream(*impl_->generic_stub, kNormalizeStreamMethod, std::move(tensor),
                     std::move(handlers));
}

absl::StatusOr<v1::ListModelsResponse> Client::ListModels(Duration timeout) {
  return impl_->Call(*impl_->stub, &v1::NormService::Stub::ListModels, v1::ListModelsRequest(),
                     timeout);
}

absl::StatusOr<v1::ModelInfo> Client::GetModel(absl::string_view model, std::int64_t version,
                                               Duration timeout) {
  return ModelIn(impl_->Call(*impl_->stub, &v1::NormService::Stub::GetModel,
                             Naming<v1::GetModelRequest>(model, version), timeout));
}

absl::StatusOr<v1::ModelInfo> Client::LoadModel(absl::string_view model, std::int64_t version,
                                                Duration timeout) {
  return ModelIn(impl_->Call(*impl_->stub, &v1::NormService::Stub::LoadModel,
                             Naming<v1::LoadModelRequest>(model, version), timeout));
}

absl::StatusOr<v1::UnloadModelResponse> Client::UnloadModel(absl::string_view model,
                                                            std::int64_t version,
                                                            Duration timeout) {
  return impl_->Call(*impl_->stub, &v1::NormService::Stub::UnloadModel,
                     Naming<v1::UnloadModelRequest>(model, version), timeout);
}

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo(Duration timeout) {
  return impl_->Call(*impl_->stub, &v1::NormService::Stub::GetServerInfo,
                     v1::GetServerInfoRequest(), timeout);
}

absl::StatusOr<v1::ListSharedMemoryResponse> Client::ListSharedMemory(Duration timeout) {
  return impl_->Call(*impl_->stub, &v1::NormService::Stub::ListSharedMemory,
                     v1::ListSharedMemoryRequest(), timeout);
}

absl::Status Client::RegisterDeviceMemory(const DeviceMemoryName& memory, Duration timeout) {
  inference::CudaSharedMemoryRegisterRequest request;
  request.set_name(memory.name);
  request.set_raw_handle(memory.handle);
  request.set_device_id(memory.device);
  request.set_byte_size(memory.bytes);
  return impl_
      ->Call(*impl_->inference_stub,
             &inference::GRPCInferenceService::Stub::CudaSharedMemoryRegister, request, timeout)
      .status();
}

absl::Status Client::UnregisterDeviceMemory(const std::string& name, Duration timeout) {
  return impl_->Unregister(&inference::GRPCInferenceService::Stub::CudaSharedMemoryUnregister, name,
                           timeout);
}

absl::Status Client::UnregisterNamedMemory(const std::string& name, Duration timeout) {
  return impl_->Unregister(&inference::GRPCInferenceService::Stub::SystemSharedMemoryUnregister,
                           name, timeout);
}

absl::StatusOr<HealthStatus> Client::CheckHealth(const std::string& service, Duration timeout) {
  Awaited<HealthStatus> reply;
  CheckHealthAsync(service, timeout,
                   [&reply](absl::StatusOr<HealthStatus> health) { reply.Set(health); });
  return reply.Wait();
}

void Client::CheckHealthAsync(const std::string& service, Duration timeout, HealthDone done) {
  client::CheckHealthAsync(*impl_->generic_stub, service, timeout,
                           [connection = impl_->connection, done = std::move(done)](
                               const grpc::Status& status, HealthStatus health) mutable {
                             if (status.ok()) return std::move(done)(health);
                             std::move(done)(ToAbsl(status, connection->target));
                           });
}

absl::Status Client::WatchHealth(const std::string& service,
                                 const std::function<bool(HealthStatus)>& on_change,
                                 Duration timeout) {
  return ToAbsl(client::WatchHealth(*impl_->generic_stub, service, timeout, on_change), target());
}

}  // namespace normd::client
