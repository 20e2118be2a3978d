// Rights of callers, by the flags of a normd process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <thread>

#include "tests/server/identity/identity_files.h"
#include "tests/server/process/normd_process.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr char kPolicy[] = R"(role { name: "user" infer: "rms_*" }
role { name: "operator" admin: true }
identity { name: "u" role: "user" token: "u" }
identity { name: "o" role: "operator" token: "o" }
)";

// ' ': without a token.
Code Normalize(const NormdProcess& normd, char identity) {
  grpc::ClientContext context;
  if (identity != ' ') context.AddMetadata("authorization", BearerOf(identity));
  v1::NormalizeResponse response;
  return normd.NewStub()->Normalize(&context, RmsNormRequest(1), &response).error_code();
}

Code LoadModel(const NormdProcess& normd, char identity) {
  grpc::ClientContext context;
  if (identity != ' ') context.AddMetadata("authorization", BearerOf(identity));
  v1::LoadModelRequest request;
  request.set_model("rms_norm_4096");
  v1::LoadModelResponse response;
  return normd.NewStub()->LoadModel(&context, request, &response).error_code();
}

class AccessProcessTest : public ::testing::Test {
 protected:
  AccessProcessTest() {
    folder_.Write("policy", kPolicy);
    folder_.Write("tokens", TokenLine("u", TokenOf('u')) + TokenLine("o", TokenOf('o')));
  }

  IdentityFolder folder_;
  const std::string policy_ = "--policy_file=" + folder_.Path("policy");
  const std::string tokens_ = "--tokens_file=" + folder_.Path("tokens");
};

TEST_F(AccessProcessTest, APolicyHoldsAndFollowsItsFiles) {
  NormdProcess normd({policy_, tokens_, "--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  EXPECT_EQ(Normalize(normd, ' '), Code::UNAUTHENTICATED);
  EXPECT_EQ(Normalize(normd, 'x'), Code::UNAUTHENTICATED);
  EXPECT_EQ(Normalize(normd, 'o'), Code::PERMISSION_DENIED);
  EXPECT_EQ(Normalize(normd, 'u'), Code::OK);
  EXPECT_EQ(LoadModel(normd, 'u'), Code::PERMISSION_DENIED);
  EXPECT_EQ(LoadModel(normd, 'o'), Code::OK);
  folder_.Write("tokens", TokenLine("u", TokenOf('n')));
  while (Normalize(normd, 'n') != Code::OK) std::this_thread::yield();
  EXPECT_EQ(Normalize(normd, 'u'), Code::UNAUTHENTICATED);
  for (const char* wrong : {"nonsense", ""}) {
    folder_.Write("policy", wrong);
    EXPECT_NE(normd.child().ReadUntil("the one before goes on to hold: "), "");
    EXPECT_EQ(Normalize(normd, 'n'), Code::OK);
    folder_.Write("policy", kPolicy);
    EXPECT_NE(normd.child().ReadUntil("its files are right again"), "");
  }
  normd.child().Signal(SIGTERM);
  EXPECT_EQ(normd.child().Wait(), 0) << normd.child().output();
  EXPECT_THAT(normd.child().output(), HasSubstr("\"audit\":\"admin\""));
  EXPECT_THAT(normd.child().output(), HasSubstr("\"audit\":\"denied\""));
}

// To withdraw the last token is right, and so is a line of the log that says what that does.
TEST_F(AccessProcessTest, AFileWithoutTokensRefusesTheirCallersAndTheLogSaysSo) {
  NormdProcess normd({policy_, tokens_, "--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  EXPECT_EQ(Normalize(normd, 'u'), Code::OK);
  for (const char* none : {"", "\n", "# none\n"}) {
    folder_.Write("tokens", none);
    const std::string line = normd.child().ReadUntil("0 tokens; --tokens_file has no token o, u");
    EXPECT_THAT(line, HasSubstr("warning")) << normd.child().output();
    EXPECT_EQ(Normalize(normd, 'u'), Code::UNAUTHENTICATED);
    folder_.Write("tokens", TokenLine("u", TokenOf('u')));
    EXPECT_THAT(normd.child().ReadUntil("1 tokens; --tokens_file has no token o"),
                HasSubstr("info"));
    EXPECT_EQ(Normalize(normd, 'u'), Code::OK);
  }
}

TEST_F(AccessProcessTest, AStartFailsWithOneLineThatNamesTheFileAndThePlace) {
  folder_.Write("policy", std::string(kPolicy) + "identity { nme: \"x\" }");
  NormdProcess unknown({policy_, tokens_});
  EXPECT_EQ(unknown.child().Wait(), 1);
  EXPECT_THAT(unknown.child().output(),
              HasSubstr("cannot start: " + folder_.Path("policy") + ": line 5, column"));
  folder_.Write("policy", kPolicy);
  folder_.Write("tokens", "", 0644);
  NormdProcess readable({policy_, tokens_});
  EXPECT_EQ(readable.child().Wait(), 1);
  EXPECT_THAT(readable.child().output(), HasSubstr(folder_.Path("tokens") + ": mode 0644"));
}

TEST_F(AccessProcessTest, WithoutAPolicyLoadsAreTakenOnLoopbackAlone) {
  NormdProcess local({"--lame_duck=0s"});
  ASSERT_NE(local.grpc_address(), "") << local.child().output();
  EXPECT_EQ(LoadModel(local, ' '), Code::OK);
  for (const bool on : {false, true}) {
    NormdProcess wide(
        {"--listen=0.0.0.0:0", "--insecure", on ? "--admin=on" : "--admin=auto", "--lame_duck=0s"});
    ASSERT_NE(wide.grpc_address(), "") << wide.child().output();
    EXPECT_EQ(LoadModel(wide, ' '), on ? Code::OK : Code::PERMISSION_DENIED);
    EXPECT_EQ(Normalize(wide, ' '), Code::OK);
  }
}

}  // namespace
}  // namespace normd::testing
