// A NormService, and ModelInfer of the Open Inference Protocol, for tests of the clients: a real
// gRPC server on a loopback port of its own, which computes with kernels/reference.h and can fail,
// hold its responses, answer wrongly and die.

#ifndef NORMD_TESTS_SUPPORT_FAKE_NORM_SERVICE_H_
#define NORMD_TESTS_SUPPORT_FAKE_NORM_SERVICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/tensor/tensor.h"
#include "grpcpp/security/server_credentials.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::test {

// Thread-safe. Serves from construction to Stop or destruction.
class FakeNormService {
 public:
  // Without credentials it serves in the clear.
  explicit FakeNormService(std::shared_ptr<grpc::ServerCredentials> credentials = nullptr);
  ~FakeNormService();

  const std::string& target() const;  // "127.0.0.1:port"; stays after Stop.

  // Version 1 of a model; Normalize, GetModel and ListModels know it from now on.
  void AddModel(const std::string& name, const v1::ModelConfig& config,
                std::map<std::string, client::Tensor> parameters = {});

  // Version 1 of a model with any inputs and outputs. `compute` gives the outputs, without data
  // where the inputs have none, which is how a stream's header asks. Runs on the server's threads.
  using Compute = std::function<std::vector<v1::Tensor>(const v1::NormalizeRequest& request)>;
  void AddModel(const std::string& name, Compute compute);

  // What GetModel and ListModels tell of a model's tensors, {name, pattern} each; before, nothing,
  // as an older server.
  using Tensors = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
  void TellTensors(const std::string& name, const Tensors& inputs, const Tensors& outputs);

  // What the headers of streams say from now on, and so how streams of several tensors are
  // interleaved; 0, an older server, means the last dimension.
  void TellSamples(std::int64_t samples);

  // What Normalize, ModelInfer and NormalizeStream do from its call number `from` on (counted from
  // 0). Anything but OK refuses; Normalize with the payload "grpc-retry-pushback-ms" as such
  // trailing metadata.
  void FailFrom(std::int64_t from, const absl::Status& status);
  // Changes the first element of the response.
  void AnswerWronglyFrom(std::int64_t from);
  // These calls wait, once they have arrived, until Release.
  void Hold() { HoldFrom(0); }
  // The same for calls from number `from` on.
  void HoldFrom(std::int64_t from);
  void Release();

  // Waits until so many of these calls have arrived. Blocks.
  void WaitForCalls(std::int64_t calls);
  std::int64_t calls() const;

  // From grpc.health.v1.
  void SetHealth(const std::string& service, bool serving);

  // Closes every connection; nothing listens on the port afterwards.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normd::test

#endif  // NORMD_TESTS_SUPPORT_FAKE_NORM_SERVICE_H_
