#include "tests/server/process/normd_process.h"

#include <grpcpp/grpcpp.h>

namespace normd::testing {
namespace {

std::vector<std::string> CommandLine(const std::vector<std::string>& flags) {
  std::vector<std::string> args = {NORMD_BINARY,           "--model_repository=" NORMD_DEMO_MODELS,
                                   "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                                   "--http_listen=",       "--device=cpu"};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

// The word after `key` in `line`.
std::string ValueOf(const std::string& line, const std::string& key) {
  const std::size_t at = line.find(key);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + key.size();
  return line.substr(begin, line.find(' ', begin) - begin);
}

}  // namespace

NormdProcess::NormdProcess(const std::vector<std::string>& flags) : child_(CommandLine(flags)) {
  const std::string line = child_.ReadUntil("serving: ");
  grpc_address_ = ValueOf(line, "grpc=");
  metrics_address_ = ValueOf(line, "metrics=");
}

std::unique_ptr<v1::NormService::Stub> NormdProcess::NewStub() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::NormService::NewStub(
      grpc::CreateCustomChannel(grpc_address_, grpc::InsecureChannelCredentials(), arguments));
}

v1::NormalizeRequest RmsNormRequest(int rows) {
  constexpr int kColumns = 4096;
  const std::vector<float> ones(static_cast<std::size_t>(rows) * kColumns, 1.0f);
  v1::NormalizeRequest request;
  request.set_model("rms_norm_4096");
  v1::Tensor& input = *request.add_inputs();
  input.set_dtype(v1::FLOAT32);
  input.add_shape(rows);
  input.add_shape(kColumns);
  input.set_data(ones.data(), ones.size() * sizeof(float));
  return request;
}

}  // namespace normd::testing
