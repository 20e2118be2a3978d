// Who may send an event with a request: whoever may register memory of a device, for the driver
// trusts the handle.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/rpc/device_event_fixture.h"

namespace normd {
namespace {

using testing::BearerOf;
using ::testing::HasSubstr;
using testing::IdentityFolder;
using testing::TestServerOptions;
using testing::TokenLine;
using testing::TokenOf;
using Code = grpc::StatusCode;

class EventRightTest : public testing::DeviceEventFixture {
 protected:
  using DeviceEventFixture::DeviceEventFixture;

  static void Identify(grpc::ClientContext& context, char identity) {
    if (identity != ' ') context.AddMetadata("authorization", BearerOf(identity));
  }
  std::string StreamError(const inference::ModelInferRequest& request, char identity) {
    grpc::ClientContext context;
    Identify(context, identity);
    const auto stream = stub_->ModelStreamInfer(&context);
    inference::ModelStreamInferResponse response;
    stream->Write(request);
    stream->Read(&response);
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
    return response.error_message();
  }
  grpc::Status ChunksError(const std::string& handle, char identity) {
    grpc::ClientContext context;
    Identify(context, identity);
    const auto stream = server_.stub().NormalizeStream(&context);
    v1::NormalizeStreamRequest request;
    *request.mutable_header() = Plain();
    request.mutable_header()->mutable_inputs(0)->clear_data();
    request.mutable_header()->set_event_handle(handle);
    stream->Write(request);
    stream->WritesDone();
    v1::NormalizeStreamResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }
  // Whatever else is wrong with a request, by both protocols and on streams, and as a registration
  // is refused.
  void ExpectNoRight(Code code, char identity = ' ') {
    const grpc::Status registration =
        RegisterDevice(allocation_.handle, 1, kFileBytes, "other", identity);
    EXPECT_EQ(registration.error_code(), code);
    const std::string text = "event_handle: " + registration.error_message();
    const std::string handle = events_.Make();
    events_.Reach(handle);
    inference::ModelInferRequest of_no_model = InferBehind(handle);
    of_no_model.set_model_name("instance_norm_65");
    inference::ModelInferRequest of_no_type = InferBehind(handle);
    of_no_type.mutable_inputs(0)->set_datatype("BOOL");
    for (const auto& request :
         {InferBehind(handle), of_no_model, of_no_type, InferBehind("short")}) {
      ExpectRefused(request, code, text, identity);
      EXPECT_EQ(StreamError(request, identity), text);
    }
    const grpc::Status chunks = ChunksError(handle, identity);
    EXPECT_EQ(chunks.error_code(), code);
    EXPECT_EQ(chunks.error_message(), text);
    EXPECT_EQ(events_.opens(), 0) << "the driver has not seen it";
  }
};

class EventAtTheAdminListenerTest : public EventRightTest {
 protected:
  EventAtTheAdminListenerTest() : EventRightTest(Options()) {}
  static TestServerOptions Options() {
    TestServerOptions options = WithLimits();
    options.admin = AdminCalls::kOfAdminListener;
    options.admin_listen = "127.0.0.1:0";
    return options;
  }
};

// Without a policy all clients are one, and whoever guesses a region's name could send one.
TEST_F(EventAtTheAdminListenerTest, IsTakenThereAlone) {
  const std::unique_ptr<Inference::Stub> public_stub =
      std::exchange(stub_, Inference::NewStub(server_.NewAdminChannel()));
  RegisterOk(allocation_, 1);
  WriteX();
  const std::string handle = events_.Make();
  events_.Reach(handle);
  const grpc::Status there = Infer(InferBehind(handle));
  EXPECT_TRUE(there.ok()) << there.error_message();
  EXPECT_EQ(events_.opens(), 1);

  inference::ModelInferResponse unused;
  grpc::ClientContext context;
  const grpc::Status elsewhere = public_stub->ModelInfer(&context, InferBehind(handle), &unused);
  EXPECT_EQ(elsewhere.error_code(), Code::PERMISSION_DENIED);
  EXPECT_THAT(elsewhere.error_message(), HasSubstr("--admin_listen"));
  const grpc::Status normalize = Normalize(Behind(handle));
  EXPECT_EQ(normalize.error_code(), Code::PERMISSION_DENIED);
  EXPECT_EQ(normalize.error_message(), elsewhere.error_message());
  EXPECT_TRUE(Normalize(Plain()).ok()) << "without an event";
  EXPECT_EQ(events_.opens(), 1);
}

TEST_F(EventAtTheAdminListenerTest, IsRefusedElsewhereAsARegistration) {
  ExpectNoRight(Code::PERMISSION_DENIED);
}

class EventWithoutAdminCallsTest : public EventRightTest {
 protected:
  EventWithoutAdminCallsTest() : EventRightTest(Options()) {}
  static TestServerOptions Options() {
    TestServerOptions options = WithLimits();
    options.admin = AdminCalls::kNone;
    return options;
  }
};

TEST_F(EventWithoutAdminCallsTest, IsRefusedAsARegistration) {
  ExpectNoRight(Code::PERMISSION_DENIED);
}

constexpr char kRoles[] = R"(
role { name: "all" admin: true infer: "*" }
role { name: "user" infer: "*" }
identity { name: "anybody" role: "user" anonymous: true }
identity { name: "b" role: "all" token: "b" }
identity { name: "u" role: "user" token: "u" }
)";
constexpr char kAdminA[] = R"(identity { name: "a" role: "all" token: "a" })";
constexpr char kUserA[] = R"(identity { name: "a" role: "user" token: "a" })";
constexpr char kRatedA[] = R"(identity { name: "a" role: "all" token: "a"
                                         limits { requests_per_second: 0.001 burst: 3 } })";

// Before the fixture, whose server reads it.
struct WithFolder {
  IdentityFolder folder_;
};

class EventOfAnIdentityTest : public WithFolder, public EventRightTest {
 protected:
  EventOfAnIdentityTest() : EventRightTest(Options(folder_)) {}
  static std::string WritePolicy(const IdentityFolder& folder, const char* identity) {
    return folder.Write("policy", absl::StrCat(kRoles, identity, "\n"));
  }
  static TestServerOptions Options(const IdentityFolder& folder) {
    std::string tokens;
    for (const char letter : {'a', 'b', 'u'}) {
      absl::StrAppend(&tokens, TokenLine(std::string(1, letter), TokenOf(letter)));
    }
    TestServerOptions options = WithLimits();
    options.access = {WritePolicy(folder, kAdminA), folder.Write("tokens", tokens)};
    return options;
  }
  void ChangePolicy(const char* identity) {
    WritePolicy(folder_, identity);
    ASSERT_TRUE(server_.access().CheckFiles().ok());
  }
};

TEST_F(EventOfAnIdentityTest, NeedsTheRightOfAnAdmin) {
  ExpectNoRight(Code::PERMISSION_DENIED, 'u');
  ExpectNoRight(Code::UNAUTHENTICATED, ' ');
}

TEST_F(EventOfAnIdentityTest, IsRefusedOnceTheRightIsLost) {
  ASSERT_TRUE(RegisterDevice(allocation_.handle, 1, kFileBytes, "r", 'a').ok());
  ChangePolicy(kUserA);
  EXPECT_TRUE(Infer(InRegions({}, {"r", kY}), nullptr, 'a').ok()) << "the region is still its own";
  ExpectNoRight(Code::PERMISSION_DENIED, 'a');
}

TEST_F(EventOfAnIdentityTest, CountsOnceInTheRate) {
  ChangePolicy(kRatedA);
  ASSERT_TRUE(RegisterDevice(allocation_.handle, 1, kFileBytes, "r", 'a').ok());
  const std::string handle = events_.Make();
  events_.Reach(handle);
  for (int i = 0; i < 2; ++i) {
    const grpc::Status status = Infer(InferBehind(handle), nullptr, 'a');
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(Infer(InferBehind(handle), nullptr, 'a').error_code(), Code::RESOURCE_EXHAUSTED);
}

TEST_F(EventOfAnIdentityTest, OneThatHasAsManyWaitingAsItMayLeavesOthersRoom) {
  const auto of_b = WithInput(1);
  ASSERT_TRUE(RegisterDevice(allocation_.handle, 1, kFileBytes, "r", 'a').ok());
  ASSERT_TRUE(RegisterDevice(of_b.handle, 1, kFileBytes, "r", 'b').ok());
  const std::string never = events_.Make();
  const std::string soon = events_.Make();
  events_.Reach(soon);
  std::vector<std::thread> stuck;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (int i = 0; i < 4; ++i) {
    grpc::ClientContext& context = *contexts.emplace_back(std::make_unique<grpc::ClientContext>());
    Identify(context, 'a');
    stuck.emplace_back([this, &context, &never] {
      v1::NormalizeResponse unused;
      EXPECT_EQ(server_.stub().Normalize(&context, Behind(never), &unused).error_code(),
                Code::CANCELLED);
    });
  }
  WaitForWaiting(4);
  const grpc::Status refused = Normalize(Behind(soon), nullptr, 'a');
  EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("4 requests of this client's wait"));
  const grpc::Status other = Normalize(Behind(soon), nullptr, 'b');
  EXPECT_TRUE(other.ok()) << other.error_message();
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& call : stuck) call.join();
}

}  // namespace
}  // namespace normd
