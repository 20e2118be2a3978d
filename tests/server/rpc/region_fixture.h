// A server with named shared memory, and a client of both protocols beside it.

#ifndef NORMD_TESTS_SERVER_RPC_REGION_FIXTURE_H_
#define NORMD_TESTS_SERVER_RPC_REGION_FIXTURE_H_

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/shape.h"
#include "client/tensor/tensor.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/regions/shared_file.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {

// Where a tensor lies. The tensors of the fixture have kTensorBytes.
inline constexpr std::int64_t kTensorBytes = std::int64_t{2} * 64 * 33 * 4;
struct RegionPart {
  const char* region = "r";
  std::int64_t offset = 0;
  std::int64_t bytes = kTensorBytes;
};

class RegionFixture : public ::testing::Test {
 protected:
  using Inference = inference::GRPCInferenceService;

  static TestServerOptions WithSharedMemory() {
    TestServerOptions options;
    options.shared_memory = true;
    return options;
  }
  // With a policy: a and b are admins, u may infer.
  static TestServerOptions WithTwoAdmins(const SecretFolder& folder) {
    TestServerOptions options = WithSharedMemory();
    options.access = {folder.Write("policy", R"(
        role { name: "all" admin: true infer: "*" }
        role { name: "user" infer: "*" }
        identity { name: "a" role: "all" token: "a" }
        identity { name: "b" role: "all" token: "b" }
        identity { name: "u" role: "user" token: "u" })"),
                      WriteTokens(folder, "abu")};
    return options;
  }
  explicit RegionFixture(TestServerOptions options = WithSharedMemory())
      : server_(std::move(options)) {}

  // `identity` is a letter's of SecretFolder; ' ': nobody's.
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (Inference::Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                    const Request& request, Response* response, char identity,
                    const char* in_use = nullptr) {
    grpc::ClientContext context;
    if (identity != ' ') context.AddMetadata("authorization", BearerOf(identity));
    if (in_use != nullptr) context.AddMetadata("normd-in-use", in_use);
    return (stub_.get()->*method)(&context, request, response);
  }
  grpc::Status Register(const std::string& key, std::uint64_t offset, std::uint64_t bytes,
                        const std::string& name = "r", char identity = ' ') {
    inference::SystemSharedMemoryRegisterRequest request;
    request.set_name(name);
    request.set_key(key);
    request.set_offset(offset);
    request.set_byte_size(bytes);
    inference::SystemSharedMemoryRegisterResponse unused;
    return Call(&Inference::Stub::SystemSharedMemoryRegister, request, &unused, identity);
  }
  void RegisterOk(const SharedFile& file, std::uint64_t bytes, const std::string& name = "r",
                  std::uint64_t offset = 0) {
    const grpc::Status status = Register(file.key(), offset, bytes, name);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  grpc::Status Unregister(const std::string& name, const char* in_use = nullptr,
                          char identity = ' ') {
    inference::SystemSharedMemoryUnregisterRequest request;
    request.set_name(name);
    inference::SystemSharedMemoryUnregisterResponse unused;
    return Call(&Inference::Stub::SystemSharedMemoryUnregister, request, &unused, identity, in_use);
  }
  grpc::Status Status(const std::string& name,
                      inference::SystemSharedMemoryStatusResponse* response, char identity = ' ') {
    inference::SystemSharedMemoryStatusRequest request;
    request.set_name(name);
    return Call(&Inference::Stub::SystemSharedMemoryStatus, request, response, identity);
  }
  grpc::Status Infer(const inference::ModelInferRequest& request,
                     inference::ModelInferResponse* response = nullptr, char identity = ' ') {
    inference::ModelInferResponse unused;
    return Call(&Inference::Stub::ModelInfer, request, response != nullptr ? response : &unused,
                identity);
  }

  grpc::Status Normalize(const v1::NormalizeRequest& request,
                         v1::NormalizeResponse* response = nullptr, char identity = ' ') {
    v1::NormalizeResponse unused;
    grpc::ClientContext context;
    if (identity != ' ') context.AddMetadata("authorization", BearerOf(identity));
    return server_.stub().Normalize(&context, request, response != nullptr ? response : &unused);
  }

  // The model "styles": two styles by index, whose weights are 1 and 3.
  void LoadStyles() {
    v1::ModelConfig config;
    config.mutable_conditional_instance_norm()->set_channels(64);
    config.mutable_conditional_instance_norm()->set_styles(2);
    config.mutable_conditional_instance_norm()->set_by_index(true);
    client::Tensor weight =
        *client::Tensor::Allocate(norm::DType::kFloat32, *Shape::Create({2, 64}));
    for (std::size_t i = 0; i < 128; ++i) {
      reinterpret_cast<float*>(weight.mutable_bytes().data())[i] = i < 64 ? 1 : 3;
    }
    AddModel(server_, "styles", config, {{"weight", weight}});
  }

  // Over messages.
  static v1::NormalizeRequest Plain(std::uint64_t seed = 1) {
    return MakeRequest("instance_norm_64", {2, 64, 33}, seed);
  }
  std::string Expected(const v1::NormalizeRequest& plain) {
    const v1::NormalizeResponse response = Normalized(server_, plain);
    return response.outputs_size() == 1 ? response.outputs(0).data() : "";
  }

  template <typename Tensor>
  static void Place(const RegionPart& part, Tensor* tensor) {
    auto& parameters = *tensor->mutable_parameters();
    parameters["shared_memory_region"].set_string_param(part.region);
    parameters["shared_memory_byte_size"].set_int64_param(part.bytes);
    if (part.offset != 0) parameters["shared_memory_offset"].set_int64_param(part.offset);
  }
  static inference::ModelInferRequest InRegions(const RegionPart& x, const RegionPart& y) {
    inference::ModelInferRequest request = ToInfer(Plain());
    request.clear_raw_input_contents();
    Place(x, request.mutable_inputs(0));
    auto& output = *request.add_outputs();
    output.set_name("y");
    Place(y, &output);
    return request;
  }
  // By both protocols, in the same words.
  void ExpectRefused(const inference::ModelInferRequest& request, grpc::StatusCode code,
                     const std::string& text, char identity = ' ') {
    const grpc::Status status = Infer(request, nullptr, identity);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(text));
    const grpc::Status normalize = Normalize(ToNormalize(request), nullptr, identity);
    EXPECT_EQ(normalize.error_code(), code) << normalize.error_message();
    EXPECT_EQ(normalize.error_message(), status.error_message());
  }

  // The client writes its input to the file, and reads its output there.
  static void WriteInput(const SharedFile& file, const v1::NormalizeRequest& plain,
                         std::size_t offset = 0) {
    const std::string& data = plain.inputs(0).data();
    std::memcpy(file.data() + offset, data.data(), data.size());
  }
  static std::string OutputIn(const SharedFile& file, std::size_t offset) {
    return std::string(file.As<char>(offset), kTensorBytes);
  }
  // A request that a lane has begun and does not compute before the gate is opened.
  class StalledInfer {
   public:
    StalledInfer(RegionFixture& test, inference::ModelInferRequest request)
        : test_(test), request_(std::move(request)) {
      test_.server_.gate().Close();
      thread_ = std::thread([this] { status_ = test_.Infer(request_); });
      test_.server_.gate().WaitForStalled(1);
    }
    ~StalledInfer() {
      if (thread_.joinable()) Finish();
    }
    grpc::Status Finish() {
      test_.server_.gate().Open();
      thread_.join();
      return status_;
    }
    void FinishOk() {
      const grpc::Status status = Finish();
      EXPECT_TRUE(status.ok()) << status.error_message();
    }

   private:
    RegionFixture& test_;
    const inference::ModelInferRequest request_;
    grpc::Status status_;
    std::thread thread_;
  };

  v1::ListSharedMemoryResponse List() {
    grpc::ClientContext context;
    v1::ListSharedMemoryResponse response;
    const grpc::Status status = server_.stub().ListSharedMemory(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  double NamedRegions() const { return server_.Metric("normd_shared_regions{kind=\"named\"}"); }

  static constexpr std::int64_t kY = 20480;  // Where y lies behind x.
  static constexpr std::size_t kFileBytes = 64 << 10;
  TestServer server_;
  std::unique_ptr<Inference::Stub> stub_ = Inference::NewStub(server_.NewChannel());
  SharedFile file_{kFileBytes};
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_REGION_FIXTURE_H_
