// The normd binary, started on free ports.

#ifndef NORMD_TESTS_SERVER_PROCESS_NORMD_PROCESS_H_
#define NORMD_TESTS_SERVER_PROCESS_NORMD_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "normd/v1/norm_service.grpc.pb.h"
#include "tests/server/process/child_process.h"

namespace normd::testing {

// With the demo models, unless `flags` say otherwise. Returns when it serves or has ended.
class NormdProcess {
 public:
  explicit NormdProcess(const std::vector<std::string>& flags = {});

  ChildProcess& child() { return child_; }
  // "127.0.0.1:port"; empty if it never served.
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  std::unique_ptr<v1::NormService::Stub> NewStub() const;

 private:
  ChildProcess child_;
  std::string grpc_address_;
  std::string metrics_address_;
};

// RMSNorm of `rows` rows of 4096 ones, float32.
v1::NormalizeRequest RmsNormRequest(int rows);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_PROCESS_NORMD_PROCESS_H_
