// The client library: one server, every call of its service.

#ifndef NORMD_CLIENT_CLIENT_H_
#define NORMD_CLIENT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "client/caller.h"
#include "client/channel_security.h"
#include "client/health.h"
#include "client/request.h"
#include "client/response.h"
#include "client/stream.h"
#include "client/stream_call.h"
#include "normd/v1/norm_service.grpc.pb.h"

namespace normd::client {

struct ClientOptions {
  // Uses a connection of its own, not one shared by all clients of this process with the same
  // target and options. For load tests.
  bool own_connection = false;
  // Lets gRPC send a call again if its connection ended before the server had seen it. Load tests
  // turn this off: each such call is to be counted, and the provision for it costs every call.
  bool retries = true;
  // The silence after which a connection is pinged, with ten seconds for the response; 0: never.
  // Servers end connections that ping more often than they allow (normd: every 10 s).
  Duration keepalive_time{0};
  std::optional<TlsOptions> tls = std::nullopt;  // If empty, calls are not encrypted.
  // A file with a token that goes with each call; empty: none. It is read once.
  std::string token_file = {};
};

// Thread-safe. It connects at the first call and reconnects by itself. Calls never wait for a
// server to appear: one that cannot be reached gives UNAVAILABLE, with its address, as soon as that
// is known.
//
// Errors of all calls: the server's code and message, unchanged; norm_service.proto says what they
// mean. DEADLINE_EXCEEDED after `timeout`. NormalizeAsync's errors carry the server's hint when to
// retry (retry_hint.h).
class Client final : public Caller {
 public:
  // `target`: "127.0.0.1:8001", or any of gRPC's names ("dns:///host:port", "unix:/path").
  // InvalidArgument for an invalid server name, for options that do not go together, and for a
  // token that would cross a network unencrypted; NotFound for a file that cannot be read. Does not
  // connect.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& target,
                                                        const ClientOptions& options = {});
  // Calls in flight continue.
  ~Client() override;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Connects, if necessary, and waits until the connection is there: true. On a busy machine an
  // attempt can fail within gRPC 1.51, so this waits for a second one, at most half a second
  // longer. False after that, or after the timeout; calls then say why.
  bool Connect(Duration timeout = kNoTimeout);

  std::shared_ptr<PendingCall> NormalizeAsync(const EncodedRequest& request, Duration timeout,
                                              Done done) override;
  // Encodes and starts. Errors of EncodedRequest::Create are returned and `done` does not run.
  absl::StatusOr<std::shared_ptr<PendingCall>> NormalizeAsync(const NormalizeRequest& request,
                                                              Done done);
  // The same, but waits for the response. Must not be called from a `done`.
  absl::StatusOr<NormalizeResponse> Normalize(const NormalizeRequest& request);

  // Handles tensors of any size: reads the inputs from `reader` and gives the outputs to `writer`,
  // both in the stream's order (StreamOrder), in parts and concurrently. The result has the same
  // bits as Normalize's. Blocks. An error of the reader or the writer cancels the call and is
  // returned unchanged; after any error, the writer has not received the whole tensor.
  // ResourceExhausted: nothing was read yet; retry later.
  absl::StatusOr<StreamResult> NormalizeStream(const StreamRequest& request, StreamReader reader,
                                               StreamWriter writer);

  std::shared_ptr<PendingCall> NormalizeStreamAsync(
      std::shared_ptr<const StreamedTensor> tensor,
      absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes, StreamDone done) override;

  // These block. version 0: as norm_service.proto says for each message.
  absl::StatusOr<v1::ListModelsResponse> ListModels(Duration timeout = kNoTimeout);
  absl::StatusOr<v1::ModelInfo> GetModel(absl::string_view model, std::int64_t version = 0,
                                         Duration timeout = kNoTimeout);
  absl::StatusOr<v1::ModelInfo> LoadModel(absl::string_view model, std::int64_t version = 0,
                                          Duration timeout = kNoTimeout);
  absl::StatusOr<v1::UnloadModelResponse> UnloadModel(absl::string_view model,
                                                      std::int64_t version = 0,
                                                      Duration timeout = kNoTimeout);
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(Duration timeout = kNoTimeout);
  absl::StatusOr<v1::ListSharedMemoryResponse> ListSharedMemory(Duration timeout = kNoTimeout);

  // Device memory under a name of the caller's choice, registered by CudaSharedMemoryRegister of
  // the Open Inference Protocol; DeviceRegion does it. Blocking.
  struct DeviceMemoryName {
    std::string name;
    std::string handle;  // The bytes of a cudaIpcMemHandle_t.
    int device = 0;      // As the server numbers devices.
    std::uint64_t bytes = 0;
  };
  absl::Status RegisterDeviceMemory(const DeviceMemoryName& memory, Duration timeout = kNoTimeout);
  // Waits until no request uses it any more. An empty name: all device memory that the caller's
  // identity has registered.
  absl::Status UnregisterDeviceMemory(const std::string& name, Duration timeout = kNoTimeout);
  // The same for memory that was registered by the name of its file.
  absl::Status UnregisterNamedMemory(const std::string& name, Duration timeout = kNoTimeout);

  // grpc.health.v1.Health/Check; blocking, and not for a `done` either. `service` "" is the server
  // as a whole. NOT_FOUND: the server does not know the service.
  absl::StatusOr<HealthStatus> CheckHealth(const std::string& service,
                                           Duration timeout = kNoTimeout);
  // The same without blocking; `done` runs exactly once, on one of gRPC's threads.
  void CheckHealthAsync(const std::string& service, Duration timeout, HealthDone done);
  // grpc.health.v1.Health/Watch: calls `on_change` with the status at once and after each change,
  // on the caller's thread, until it returns false (Ok) or the stream ends (its error). Blocks.
  absl::Status WatchHealth(const std::string& service,
                           const std::function<bool(HealthStatus)>& on_change,
                           Duration timeout = kNoTimeout);

  const std::string& target() const;

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_CLIENT_H_
