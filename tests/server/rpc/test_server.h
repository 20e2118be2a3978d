// The whole server in this process, on a free port of the loopback interface.

#ifndef NORMD_TESTS_SERVER_RPC_TEST_SERVER_H_
#define NORMD_TESTS_SERVER_RPC_TEST_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/tensor/tensor.h"
#include "grpcpp/grpcpp.h"
#include "normd/v1/model_config.pb.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "server/accept/environment.h"
#include "server/rest/rest_options.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/graceful_stop.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/raw_service.h"
#include "server/rpc/readiness.h"
#include "tests/support/fake_page_locker.h"
#include "tests/support/test_lanes.h"

namespace normd {
class CertificateStore;
}

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
  // Called on the loader's thread at the end of each load and unload.
  std::function<void()> on_change = [] {};
  WithoutModels without_models = WithoutModels::kNotReady;
  std::string listen = "127.0.0.1:0";
  const CertificateStore* tls = nullptr;           // Null: no TLS. Outlives the server.
  std::optional<RestOptions> rest = std::nullopt;  // Serves HTTP too, on a free port.
  Duration handshake_timeout = std::chrono::seconds(10);
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
  std::shared_ptr<grpc::Channel> NewChannel() const;
  std::shared_ptr<grpc::Channel> NewChannel(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const;
  std::shared_ptr<grpc::Channel> NewAdminChannel() const;  // To the admin listener.
  int port() const;
  int http_port() const;
  Access& access();
  const Authorizer& authorizer() const;
  const std::string& repository() const;
  Gate& gate();
  GracefulStop::Parts stop_parts();
  TaskThread& lists();
  const ModelRegistry& registry() const;
  const BatchQueue& queue() const;
  // Waits until the server has nothing more to do for any call.
  void WaitIdle();
  // The value of the metrics' line that begins with `series`; 0 if there is none.
  double Metric(const std::string& series) const;
  // The sum of all lines that begin so.
  double MetricSum(const std::string& series) const;
  // How many series a scrape has.
  std::size_t SeriesCount() const;

 private:
  struct Parts;

  std::vector<double> Values(const std::string& series) const;

  const std::unique_ptr<Parts> parts_;
  std::unique_ptr<v1::NormService::Stub> stub_;
};

// A float32 tensor of `shape` for `model`, with elements that depend on `seed`.
v1::NormalizeRequest MakeRequest(const std::string& model, const std::vector<std::int64_t>& shape,
                                 std::uint64_t seed = 1);

// The same with an input for each of `names`, from seeds that follow each other.
v1::NormalizeRequest MakeRequest(const std::string& model, const std::vector<std::int64_t>& shape,
                                 const std::vector<std::string>& names, std::uint64_t seed = 1);

// A call that is waited for. `response` may be null.
grpc::Status Normalize(TestServer& server, const v1::NormalizeRequest& request,
                       v1::NormalizeResponse* response = nullptr);
// The response to a request that the server takes.
v1::NormalizeResponse Normalized(TestServer& server, const v1::NormalizeRequest& request);
grpc::Status LoadModel(TestServer& server, const std::string& model);
// Fails unless the server takes `config`, with `parameters`, as a model of this name.
void AddModel(TestServer& server, const std::string& model, const v1::ModelConfig& config,
              const std::map<std::string, client::Tensor>& parameters = {});
// An entry of the trailing metadata, and that with the pushback; "" if there is none.
std::string Trailing(const grpc::ClientContext& context, const std::string& key);
inline std::string Pushback(const grpc::ClientContext& context) {
  return Trailing(context, "grpc-retry-pushback-ms");
}

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

// One that a lane has begun and does not compute before the gate is opened.
struct StalledCall : AsyncCall {
  StalledCall(TestServer& server, v1::NormalizeRequest message);
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_TEST_SERVER_H_
