// The Open Inference Protocol's requests, made of normd.v1's, and a stream of them.

#ifndef NORMD_TESTS_SERVER_RPC_INFER_REQUESTS_H_
#define NORMD_TESTS_SERVER_RPC_INFER_REQUESTS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "inference/grpc_service.grpc.pb.h"
#include "normd/v1/norm_service.pb.h"
#include "tests/server/rpc/test_server.h"
#include "wire/data_type.h"

namespace normd::testing {

// The same request, with raw contents. What the other protocol has no word for is left out.
inline inference::ModelInferRequest ToInfer(const v1::NormalizeRequest& plain) {
  inference::ModelInferRequest request;
  request.set_model_name(plain.model());
  if (plain.version() != 0) request.set_model_version(absl::StrCat(plain.version()));
  for (const v1::Tensor& tensor : plain.inputs()) {
    auto& input = *request.add_inputs();
    input.set_name(tensor.name().empty() && plain.inputs_size() == 1 ? "x" : tensor.name());
    const DataTypeNames* type =
        FindDataType(&DataTypeNames::protocol, static_cast<int>(tensor.dtype()));
    if (type != nullptr) input.set_datatype(std::string(type->inference));
    *input.mutable_shape() = tensor.shape();
    request.add_raw_input_contents(tensor.data());
  }
  for (const v1::WantedOutput& output : plain.outputs()) {
    request.add_outputs()->set_name(output.name());
  }
  if (plain.queue_timeout_ns() != 0) {
    (*request.mutable_parameters())["timeout"].set_int64_param(plain.queue_timeout_ns() / 1000);
  }
  return request;
}

// A part of a region that the parameters of a tensor name; nullopt: none.
template <typename Tensor>
std::optional<v1::SharedMemory> SharedMemoryOf(const Tensor& tensor) {
  const auto& parameters = tensor.parameters();
  const auto region = parameters.find("shared_memory_region");
  if (region == parameters.end()) return std::nullopt;
  const auto number = [&](const char* key) {
    const auto found = parameters.find(key);
    return found == parameters.end() ? 0 : found->second.int64_param();
  };
  v1::SharedMemory memory;
  memory.set_region(region->second.string_param());
  memory.set_offset(number("shared_memory_offset"));
  memory.set_byte_size(number("shared_memory_byte_size"));
  return memory;
}

// The other way round, with shared memory; of a request that has raw contents, if any.
inline v1::NormalizeRequest ToNormalize(const inference::ModelInferRequest& request) {
  v1::NormalizeRequest plain;
  plain.set_model(request.model_name());
  int contents = 0;
  for (const auto& tensor : request.inputs()) {
    v1::Tensor& input = *plain.add_inputs();
    input.set_name(tensor.name());
    const DataTypeNames* type = FindDataType(&DataTypeNames::inference, tensor.datatype());
    if (type != nullptr) input.set_dtype(static_cast<v1::DataType>(type->protocol));
    *input.mutable_shape() = tensor.shape();
    const auto memory = SharedMemoryOf(tensor);
    if (memory.has_value()) {
      *input.mutable_shared_memory() = *memory;
    } else if (contents < request.raw_input_contents_size()) {
      input.set_data(request.raw_input_contents(contents++));
    }
  }
  for (const auto& tensor : request.outputs()) {
    v1::WantedOutput& output = *plain.add_outputs();
    output.set_name(tensor.name());
    const auto memory = SharedMemoryOf(tensor);
    if (memory.has_value()) *output.mutable_shared_memory() = *memory;
  }
  return plain;
}

// A ModelInfer call, on a connection of its own, that is waited for. `response` may be null.
inline grpc::Status Infer(TestServer& server, const inference::ModelInferRequest& request,
                          inference::ModelInferResponse* response = nullptr) {
  grpc::ClientContext context;
  inference::ModelInferResponse unused;
  return inference::GRPCInferenceService::NewStub(server.NewChannel())
      ->ModelInfer(&context, request, response != nullptr ? response : &unused);
}

// A ModelStreamInfer call. Cancelled on destruction if it has not ended.
class InferStreamClient {
 public:
  explicit InferStreamClient(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(inference::GRPCInferenceService::NewStub(channel)),
        stream_(stub_->ModelStreamInfer(&context_)) {}

  bool Send(const inference::ModelInferRequest& request) { return stream_->Write(request); }
  void HalfClose() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  std::optional<inference::ModelStreamInferResponse> Read() {
    inference::ModelStreamInferResponse response;
    if (!stream_->Read(&response)) return std::nullopt;
    return response;
  }
  // Reads what is left.
  grpc::Status Finish() {
    while (Read().has_value()) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>>
      stream_;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_INFER_REQUESTS_H_
