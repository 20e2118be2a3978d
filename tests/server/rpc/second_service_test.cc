// A second protocol beside normd.v1: a decoder, an encoder and a registration, and nothing else.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/rpc/normalize_call.h"
#include "server/rpc/raw_service.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/wire/wire_writer.h"
#include "wire/grpc_slices.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kName[] = "tests.Plain";
constexpr char kMethod[] = "/tests.Plain/Normalize";
constexpr std::size_t kMaxHead = 64;

// Messages of one line, "<model> <dim>x<dim>", and the bytes of a float32 tensor.
class PlainCodec final : public MessageCodec {
 public:
  absl::StatusOr<RequestDescription> Decode(absl::Span<const ConstBytes> slices) const override {
    std::string head;
    for (const ConstBytes slice : slices) {
      const std::size_t size = std::min(slice.size(), kMaxHead - head.size());
      head.append(reinterpret_cast<const char*>(slice.data()), size);
    }
    const std::size_t end = head.find('\n');
    const std::vector<std::string> words = absl::StrSplit(head.substr(0, end), ' ');
    if (end == std::string::npos || words.size() != 2) {
      return absl::InvalidArgumentError("head: wanted a line with a model and a shape");
    }
    RequestDescription request;
    request.model = words[0];
    InputDescription& input = request.inputs.emplace_back();
    for (const auto dim : absl::StrSplit(words[1], 'x')) {
      if (!absl::SimpleAtoi(dim, &input.shape.emplace_back())) {
        return absl::InvalidArgumentError("head: wanted a shape such as 2x64");
      }
    }
    std::size_t skip = end + 1;
    for (ConstBytes slice : slices) {
      const std::size_t skipped = std::min(skip, slice.size());
      slice.remove_prefix(skipped);
      skip -= skipped;
      if (slice.empty()) continue;
      input.data.views.push_back(slice);
      input.data_bytes += static_cast<std::int64_t>(slice.size());
    }
    return request;
  }

  grpc::ByteBuffer Encode(ResponseDescription&& response) const override {
    OutputDescription& output = response.outputs[0];
    const grpc::Slice head(
        absl::StrCat(response.model, " ", absl::StrJoin(output.shape, "x"), "\n"));
    const ConstBytes bytes(output.data.data(), output.data.size());
    const grpc::Slice parts[] = {head, SliceHolding(bytes, std::move(output.data))};
    return grpc::ByteBuffer(parts, 2);
  }
};

class PlainService final : public RawService {
 public:
  explicit PlainService(CallEnvironment& environment) : RawService(kName) {
    AddUnary("Normalize",
             [this, &environment](Context* context, const Bytes* request, Bytes* response) {
               return NormalizeCall::Begin(environment, *context, Method::kNormalize,
                                           {*request, *response, codec_});
             });
  }

 private:
  const PlainCodec codec_;
};

// Serves it beside NormService.
class SecondServiceTest : public ::testing::Test {
 protected:
  static TestServerOptions Options(std::unique_ptr<PlainService>& service) {
    TestServerOptions options;
    options.more_services = [&service](CallEnvironment& environment) {
      service = std::make_unique<PlainService>(environment);
      return std::vector<ServedService>{service->served()};
    };
    return options;
  }
  grpc::Status Call(const std::string& message, std::string* answer = nullptr) {
    return RawCall(server_.NewChannel(), kMethod, message, answer);
  }

  std::unique_ptr<PlainService> service_;
  TestServer server_{Options(service_)};
};

TEST_F(SecondServiceTest, AnswersWithTheBitsOfTheFirst) {
  const v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {3, 1024});
  grpc::ClientContext context;
  v1::NormalizeResponse response;
  ASSERT_TRUE(server_.stub().Normalize(&context, request, &response).ok());
  std::string answer;
  const grpc::Status status = Call("layer_norm_1024 3x1024\n" + request.inputs(0).data(), &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(answer == "layer_norm_1024 3x1024\n" + response.outputs(0).data());
  server_.WaitIdle();
  EXPECT_EQ(server_.Metric("normd_inflight_bytes"), 0);
  EXPECT_EQ(server_.Metric("normd_requests_total{model=\"layer_norm_1024\",version=\"1\","
                           "method=\"Normalize\",code=\"OK\"}"),
            2);
}

TEST_F(SecondServiceTest, RefusesInTheWordsOfTheFirst) {
  for (const auto& [model, shape] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
           {"nothing", {3, 1024}},
           {"../x", {3, 1024}},
           {"layer_norm_1024", {3, 1023}},
           {"layer_norm_1024", {-3, 1024}},
           {"layer_norm_1024", {4, 1024}}}) {
    v1::NormalizeRequest request = MakeRequest("layer_norm_1024", {3, 1024});
    request.set_model(model);
    request.mutable_inputs(0)->mutable_shape()->Assign(shape.begin(), shape.end());
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    const grpc::Status first = server_.stub().Normalize(&context, request, &response);
    const grpc::Status second =
        Call(absl::StrCat(model, " ", absl::StrJoin(shape, "x"), "\n", request.inputs(0).data()));
    EXPECT_FALSE(second.ok());
    EXPECT_EQ(second.error_code(), first.error_code());
    EXPECT_EQ(second.error_message(), first.error_message());
  }
  EXPECT_THAT(Call("no head").error_message(), HasSubstr("head: wanted a line"));
}

TEST_F(SecondServiceTest, HealthKnowsItAndItsModels) {
  for (const char* name : {"", kName, "tests.Plain/layer_norm_1024", "normd.v1.NormService"}) {
    Health health = Health::kUnknown;
    EXPECT_TRUE(CheckHealth(server_.NewChannel(), name, &health).ok()) << name;
    EXPECT_EQ(health, Health::kServing) << name;
  }
  v1::UnloadModelRequest request;
  request.set_model("layer_norm_1024");
  grpc::ClientContext context;
  v1::UnloadModelResponse response;
  ASSERT_TRUE(server_.stub().UnloadModel(&context, request, &response).ok());
  Health health = Health::kUnknown;
  EXPECT_EQ(CheckHealth(server_.NewChannel(), "tests.Plain/layer_norm_1024", &health).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(SecondServiceTest, IsRefusedWhileTheServerDrains) {
  server_.stop_parts().admission.Close();
  const grpc::Status status = Call("layer_norm_1024 1x1024\n" + std::string(4096, '\0'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

// The server's reflection, for both versions of its protocol.

TEST(ReflectionTest, ListsTheServiceAndDescribesIt) {
  TestServer server;
  for (const std::string service :
       {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}) {
    const std::string info = absl::StrCat("/", service, "/ServerReflectionInfo");
    RawStream list(server.NewChannel(), info, BytesField(7, ""));
    const std::string services = list.Read().value_or("");
    EXPECT_THAT(services, HasSubstr("normd.v1.NormService"));
    EXPECT_THAT(services, HasSubstr(service));
    RawStream describe(server.NewChannel(), info, BytesField(4, "normd.v1.NormService"));
    EXPECT_THAT(describe.Read().value_or(""), HasSubstr("Normalize"));
    RawStream itself(server.NewChannel(), info, BytesField(4, service));
    EXPECT_THAT(itself.Read().value_or(""), HasSubstr("ServerReflectionInfo")) << service;
  }
}

}  // namespace
}  // namespace normd::testing
