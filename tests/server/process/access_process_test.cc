// Rights of callers, by the flags of a normd process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/identity/identity_files.h"
#include "tests/server/process/normd_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"

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
    WriteTokens(folder_, "uo");
  }

  SecretFolder folder_;
  const std::string policy_ = "--policy_file=" + folder_.File("policy");
  const std::string tokens_ = "--tokens_file=" + folder_.File("tokens");
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
  WaitUntil([&] { return Normalize(normd, 'n') == Code::OK; });
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
    WriteTokens(folder_, "u");
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
              HasSubstr("cannot start: " + folder_.File("policy") + ": line 5, column"));
  folder_.Write("policy", kPolicy);
  folder_.Write("tokens", "", 0644);
  NormdProcess readable({policy_, tokens_});
  EXPECT_EQ(readable.child().Wait(), 1);
  EXPECT_THAT(readable.child().output(), HasSubstr(folder_.File("tokens") + ": mode 0644"));
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

// A real Prometheus scrapes normd and computes a percentile of its latencies.

std::string OutputOf(const std::string& command) {
  std::string output;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  pclose(pipe);
  return output;
}

TEST(PrometheusTest, ComputesAPercentileFromTheScrapedHistogram) {
  if (!IsInstalled("prometheus") || !IsInstalled("promtool")) {
    GTEST_SKIP() << "prometheus is not installed (apt install prometheus)";
  }
  NormdProcess normd({"--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();

  const TempFolder folder;
  std::ofstream(folder.File("prometheus.yml"))
      << "global: {scrape_interval: 200ms}\n"
      << "scrape_configs:\n"
      << "  - job_name: normd\n"
      << "    static_configs: [{targets: ['" << normd.metrics_address() << "']}]\n";
  const std::string address = absl::StrCat("127.0.0.1:", FreePort());
  ChildProcess prometheus({"prometheus", "--config.file=" + folder.File("prometheus.yml"),
                           "--storage.tsdb.path=" + folder.File("data"),
                           "--web.listen-address=" + address});
  ASSERT_NE(prometheus.ReadUntil("Server is ready"), "") << prometheus.output();

  // Prometheus needs two scrapes with calls between them: call until it has a response.
  const std::string query = absl::StrCat(
      "promtool query instant http://", address,
      " 'histogram_quantile(0.99, sum by (le)"
      " (rate(normd_request_duration_seconds_bucket{model=\"rms_norm_4096\"}[1m]))) > 0'"
      " 2>&1");
  const auto stub = normd.NewStub();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string answer;
  while (answer.find("=> ") == std::string::npos && std::chrono::steady_clock::now() < give_up) {
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    ASSERT_TRUE(stub->Normalize(&context, RmsNormRequest(1), &response).ok());
    answer = OutputOf(query);
  }
  double p99 = 0;
  ASSERT_EQ(std::sscanf(answer.c_str(), "{} => %lf", &p99), 1) << answer;
  EXPECT_GT(p99, 0);
  EXPECT_LT(p99, 10);
}

}  // namespace
}  // namespace normd::testing
