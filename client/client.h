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
#include "client/pending_call.h"
#include "client/request.h"
#include "client/response.h"
#include "client/stream.h"
#include "client/stream_call.h"
#include "normd/v1/norm_service.grpc.pb.h"

namespace normd::client {

struct ClientOptions {
  // A connection of its own, rather than one shared by all clients of this process with the same
  // target and options. Load tests want it.
  bool own_connection = false;
  // gRPC sends a call again by itself if its connection ended before the server had seen it. Load
  // tests do not want it: each such call is to be counted, and being ready for it costs every call.
  bool retries = true;
  // How long a connection may be silent before it is pinged, with ten seconds for the response; 0:
  // never. Servers end connections that ping more often than they allow (normd: every 10 s).
  Duration keepalive_time{0};
  std::optional<TlsOptions> tls = std::nullopt;  // Without it, calls go in the clear.
  // Holds a token that goes with each call; empty: none. It is read once.
  std::string token_file = {};
};

// Thread-safe. It connects at the first call and reconnects by itself. Calls never wait for a
// server to appear: one that cannot be reached is UNAVAILABLE, with its address, as soon as that is
// known.
//
// Errors of all calls: the server's code and message as they come; norm_service.proto says what
// they mean. DEADLINE_EXCEEDED after `timeout`. One of NormalizeAsync's carries the server's hint
// when to retry (retry_hint.h).
class Client final : public Caller {
 public:
  // `target`: "127.0.0.1:8001", or any of gRPC's names ("dns:///host:port", "unix:/path").
  // InvalidArgument for one that names no server, for options that do not go together, and for a
  // token that would go over a network in the clear; NotFound for a file that cannot be read. Does
  // not connect.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& target,
                                                        const ClientOptions& options = {});
  // Calls in flight go on to their end.
  ~Client() override;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Connects, if it has not yet, and waits until the connection is there: true. On a busy machine
  // an attempt can fail within gRPC 1.51, so a second one is waited for, half a second more at
  // most. False when that is over, or the timeout; calls then tell why.
  bool Connect(Duration timeout = kNoTimeout);

  std::shared_ptr<PendingCall> NormalizeAsync(const EncodedRequest& request, Duration timeout,
                                              Done done) override;
  // Encodes and starts. Errors of EncodedRequest::Create come back without `done` being run.
  absl::StatusOr<std::shared_ptr<PendingCall>> NormalizeAsync(const NormalizeRequest& request,
                                                              Done done);
  // The same, and waits for the response. Must not be called from a `done`.
  absl::StatusOr<NormalizeResponse> Normalize(const NormalizeRequest& request);

  // Tensors of any size: reads the inputs from `reader` and gives the outputs to `writer`, both in
  // the stream's order (StreamOrder) and in parts, while the other goes on. The bits are
  // Normalize's. Blocks. An error of the reader or the writer cancels the call and is returned as
  // it is; after any error, what the writer got is not the whole tensor. ResourceExhausted: nothing
  // was read yet; retry later.
  absl::StatusOr<StreamResult> NormalizeStream(const StreamRequest& request, StreamReader reader,
                                               StreamWriter writer);

  std::shared_ptr<PendingCall> NormalizeStreamAsync(
      std::shared_ptr<const StreamedTensor> tensor,
      absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes, StreamDone done) override;

  // Blocking. version 0: as norm_service.proto says for each message.
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

  // Memory of a device under a name of the caller's choice, by CudaSharedMemoryRegister of the Open
  // Inference Protocol; DeviceRegion does it. Blocking.
  struct DeviceMemoryName {
    std::string name;
    std::string handle;  // The bytes of a cudaIpcMemHandle_t.
    int device = 0;      // As the server counts them.
    std::uint64_t bytes = 0;
  };
  absl::Status RegisterDeviceMemory(const DeviceMemoryName& memory, Duration timeout = kNoTimeout);
  // Waits until no request uses it any more. An empty name: all memory of devices that the caller's
  // identity has registered.
  absl::Status UnregisterDeviceMemory(const std::string& name, Duration timeout = kNoTimeout);
  // The same for memory that was registered by the name of its file.
  absl::Status UnregisterNamedMemory(const std::string& name, Duration timeout = kNoTimeout);

  // grpc.health.v1.Health/Check; blocking. `service` "" is the server as a whole. NOT_FOUND: the
  // server does not know the service.
  absl::StatusOr<HealthStatus> CheckHealth(const std::string& service,
                                           Duration timeout = kNoTimeout);
  // The same without blocking; `done` runs exactly once, on a thread of gRPC's.
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
