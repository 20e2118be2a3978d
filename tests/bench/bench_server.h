// The two servers that a benchmark of the path compares, in its own process, on free loopback
// ports.

#ifndef NORMD_TESTS_BENCH_BENCH_SERVER_H_
#define NORMD_TESTS_BENCH_BENCH_SERVER_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/accept/environment.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/config/config.h"
#include "server/exec/backends.h"
#include "server/exec/executor.h"
#include "server/rpc/infer_service.h"
#include "server/rpc/norm_service.h"
#include "server/rpc/server.h"
#include "server/tls/certificate_store.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace normd {

// Serves `service`, which outlives it, without bounds on messages: on a free loopback port, or at
// `listen`, the address of a unix socket.
class EchoServer {
 public:
  explicit EchoServer(grpc::Service& service,
                      const std::shared_ptr<grpc::ServerCredentials>& credentials =
                          grpc::InsecureServerCredentials(),
                      const std::string& listen = "127.0.0.1:0");
  std::string address() const;

 private:
  const std::string listen_;
  int port_ = 0;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // Used as long as it serves.
  std::unique_ptr<grpc::Server> server_;
};

// A certificate for the servers of a benchmark, and what its clients make of it.
class BenchTls {
 public:
  BenchTls();

  const CertificateStore& store() const { return *store_; }
  std::shared_ptr<grpc::ChannelCredentials> ForClients() const;

 private:
  const testing::SecretFolder folder_;
  const testing::TestPki pki_;
  Metrics metrics_;
  std::unique_ptr<CertificateStore> store_;
};

struct BenchServerOptions {
  std::string model;   // The name of the only model, version 1, without parameters.
  std::string config;  // Its config.textproto.
  // normd's, such as "--device=cuda"; by default the CPU and a free loopback port.
  std::vector<std::string> flags = {};
  // Set: the lanes are what this makes of them, and nothing is computed inline.
  std::function<std::unique_ptr<Lane>(std::unique_ptr<Lane>)> wrap_lane = {};
  const CertificateStore* tls = nullptr;  // Null: no TLS.
};

// Reads a benchmark's own flags. Those after "--" are normd's: it returns them.
std::vector<std::string> ParseBenchmark(int argc, char** argv);

// normd as main.cc composes it. Ends the process with a message when it cannot start.
class BenchServer {
 public:
  explicit BenchServer(const BenchServerOptions& options);
  ~BenchServer();

  std::string address() const { return server_->address(); }
  std::string description() const { return backend_->Description(); }
  Metrics& metrics() { return metrics_; }

 private:
  SteadyClock clock_;
  const testing::TempFolder repository_;
  const ServerConfig config_;
  Metrics metrics_;
  Readiness readiness_;
  std::unique_ptr<Backend> backend_;
  ModelRegistry registry_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // Empty once the executor has them.
  const bool on_cpu_;
  Admission admission_;
  BatchQueue queue_;
  Executor executor_;
  RegionRegistry regions_;
  AcceptEnvironment accept_;
  CallEnvironment environment_;
  NormService service_;
  InferService infer_service_;
  std::unique_ptr<Server> server_;
};

// A stub over a connection of its own, without bounds on messages. Waits until it is there, for ten
// seconds at most: on a busy machine an attempt can fail within gRPC 1.51, which then tries again.
std::unique_ptr<grpc::GenericStub> ConnectAlone(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                                    grpc::InsecureChannelCredentials());

// Makes a call whose message lies at `wire`. Ends the process if it fails, or if its response has
// fewer bytes.
void CallOrExit(grpc::GenericStub& stub, const char* method, const std::string& wire,
                std::size_t least_bytes = 0);

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_BENCH_SERVER_H_
