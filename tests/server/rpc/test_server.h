// The whole server in this process, on a free port of the loopback interface.

#ifndef NORMD_TESTS_SERVER_RPC_TEST_SERVER_H_
#define NORMD_TESTS_SERVER_RPC_TEST_SERVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "server/accept/audit_log.h"
#include "server/accept/authorizer.h"
#include "server/accept/environment.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/exec/backends.h"
#include "server/exec/executor.h"
#include "server/identity/access.h"
#include "server/metrics/metrics.h"
#include "server/model/registry.h"
#include "server/rest/rest_server.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/graceful_stop.h"
#include "server/rpc/infer_service.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/readiness.h"
#include "server/rpc/server.h"
#include "tests/support/fake_page_locker.h"
#include "tests/support/test_lanes.h"

namespace normd::testing {

struct TestServerOptions {
  AcceptLimits accept;
  CallOptions calls;
  ServerInfo info;
  AdmissionLimits admission;
  BatchQueueOptions queue;
  RequestLog* request_log = nullptr;
  AccessFiles access = {};  // No policy: everybody may do everything that `admin` lets them.
  AdminCalls admin = AdminCalls::kAll;
  AuditLog* audit = nullptr;
  std::string admin_listen = {};
  Clock* clock = nullptr;      // Null: the steady clock.
  std::string device = "cpu";  // As normd's flag.
  int cpu_lanes = 1;
  // Served beside NormService and InferService; they outlive the server.
  std::function<std::vector<ServedService>(CallEnvironment&)> more_services = [](CallEnvironment&) {
    return std::vector<ServedService>();
  };
  // Called on the loader's thread at the end of each load and unload.
  std::function<void()> on_change = [] {};
  WithoutModels without_models = WithoutModels::kNotReady;
  std::string listen = "127.0.0.1:0";
  const CertificateStore* tls = nullptr;           // Null: no TLS. Outlives the server.
  std::optional<RestOptions> rest = std::nullopt;  // Serves HTTP too, on a free port.
  ConnectionOptions connections;
  // With TLS, those of stub().
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  bool shared_memory = false;  // Whether there are regions.
  bool named_regions = true;   // Files of /dev/shm by name.
  RegionLimits region_limits;
  // Fake devices to compute on, instead of `device`; and the memory that clients share with them,
  // which outlives the server. Null: none.
  int fake_devices = 0;
  SharedDeviceMemory* device_memory = nullptr;
  // Locks regions of the host for them; outlives the server. Null: none are locked.
  FakePageLocker* page_locker = nullptr;
  PageLockLimits page_lock_limits;
  std::size_t fake_mapped_bytes = 32 << 10;  // Up to which their kernels address the host's memory.
  int fail_at_batch = -1;  // Each lane fails at its batch of that number; -1: never.
  absl::Status lane_error = absl::InternalError("device 7 at 0xdeadbeef is gone");  // With this.
};

// Serves a private copy of the demo models with lanes behind a gate, which is open. The environment
// variable NORMD_TEST_MODELS names the models where the tests run away from the source tree.
class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {});
  ~TestServer();

  v1::NormService::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> NewChannel() const { return NewChannel(credentials_); }
  std::shared_ptr<grpc::Channel> NewChannel(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const;
  std::shared_ptr<grpc::Channel> NewAdminChannel() const;  // To the admin listener.
  int port() const { return server_->port(); }
  int http_port() const { return rest_->port(); }
  Access& access() { return *access_; }
  const Authorizer& authorizer() const { return authorizer_; }
  const std::string& repository() const { return repository_; }
  Gate& gate() { return gate_; }
  GracefulStop::Parts stop_parts() {
    GracefulStop::Parts parts{readiness_, admission_, queue_, accept_.active, *server_};
    if (rest_ != nullptr) {
      parts.on_drain = [this] { rest_->Drain(); };
      parts.on_close = [this](Duration grace) { rest_->Close(grace); };
    }
    return parts;
  }
  TaskThread& lists() { return environment_.control.lists; }
  const ModelRegistry& registry() const { return registry_; }
  const BatchQueue& queue() const { return queue_; }
  // Waits until the server has nothing more to do for any call.
  void WaitIdle();
  // The value of the metrics' line that begins with `series`; 0 if there is none.
  double Metric(const std::string& series) const;
  // How many series a scrape has.
  std::size_t SeriesCount() const;

 private:
  SteadyClock steady_clock_;
  Clock& clock_;
  const std::string repository_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::unique_ptr<Metrics> metrics_;
  Readiness readiness_;
  std::unique_ptr<Backend> backend_;
  ModelRegistry registry_;
  Admission admission_;
  BatchQueue queue_;
  Gate gate_;
  Executor executor_;
  std::unique_ptr<PageLocks> page_locks_;
  RegionRegistry regions_;
  AcceptEnvironment accept_;
  const std::unique_ptr<Access> access_;
  const Authorizer authorizer_;
  CallEnvironment environment_;
  RestEnvironment rest_environment_;
  std::unique_ptr<RestServer> rest_;
  NormService service_;
  InferService infer_service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::NormService::Stub> stub_;
};

// A float32 tensor of `shape` for `model`, with elements that depend on `seed`.
v1::NormalizeRequest MakeRequest(const std::string& model, const std::vector<std::int64_t>& shape,
                                 std::uint64_t seed = 1);

// One Normalize call that is under way.
struct AsyncCall {
  AsyncCall(v1::NormService::Stub& stub, v1::NormalizeRequest message);
  ~AsyncCall();
  const grpc::Status& Wait();

  grpc::ClientContext context;
  v1::NormalizeRequest request;
  v1::NormalizeResponse response;
  grpc::Status status;

 private:
  Mutex mutex_;
  CondVar ended_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_TEST_SERVER_H_
