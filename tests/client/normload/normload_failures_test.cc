// What goes wrong: the exit code, one clear message, and the report as far as the run came.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/security/server_credentials.h"
#include "tests/client/normload/normload_fixture.h"
#include "tests/support/certificates.h"

namespace normd::load {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST_F(NormloadTest, AnUnreachableServerIsOneMessageAndAReport) {
  server_.Stop();
  Run({"--model=norm", "--shape=1x4x5"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_THAT(err_, HasSubstr("normload: UNAVAILABLE: cannot reach " + server_.target()));
  EXPECT_EQ(report_["error"]["code"], "UNAVAILABLE");
  EXPECT_EQ(report_["result"]["requests"], 0);
}

TEST_F(NormloadTest, AWrongModelOrShapeIsOneMessage) {
  Run({"--model=other", "--shape=1x4x5"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_THAT(err_, HasSubstr("NOT_FOUND: other:1x4x5:float32: model"));
  Run({"--model=norm", "--shape=1x3x5"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_EQ(report_["error"]["code"], "INVALID_ARGUMENT");
}

TEST_F(NormloadTest, OfAWrongModelTellsWhichAreLoaded) {
  Run({"--model=other"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_THAT(err_, HasSubstr("; loaded: norm\n"));
  EXPECT_THAT(out_, HasSubstr("nothing was measured"));
}

TEST_F(NormloadTest, ATightDeadlineIsNotThatOfTheCallsBeforeTheRun) {
  server_.HoldFrom(1);
  Run({"--model=norm", "--shape=1x4x5", "--timeout=1us", "--requests=5"});
  server_.Release();
  EXPECT_EQ(report_["result"]["codes"], (Json{{"DEADLINE_EXCEEDED", 5}}));
}

TEST_F(NormloadTest, WrongResponsesAndStreamsFailTheRun) {
  for (const bool streams : {false, true}) {
    server_.AnswerWronglyFrom(server_.calls() + 50);
    Run({"--model=norm", "--shape=1x4x5", streams ? "--stream" : "--stream=false", "--requests=100",
         "--concurrency=1", "--verify", "--verify_every=1",
         "--model_repository=" + folder_.path()});
    EXPECT_EQ(code_, kExitFailed);
    EXPECT_EQ(report_["result"]["verified"], 100);
    EXPECT_EQ(report_["result"]["wrong"], 51);  // The call before the run was number 0.
    EXPECT_THAT(err_, HasSubstr("DATA_LOSS: 51 of 100 verified responses are wrong"));
    EXPECT_THAT(err_, HasSubstr(streams ? "norm:1x4x5:float32:stream=1MiB: " : "norm:1x4x5:"));
  }
}

TEST_F(NormloadTest, ErrorsFailTheRunBeyondTheirShare) {
  server_.FailFrom(51, absl::ResourceExhaustedError("queue: full"));
  std::vector<std::string> arguments = {"--model=norm", "--shape=1x4x5", "--requests=100",
                                        "--concurrency=1"};
  Run(arguments);
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_EQ(report_["result"]["codes"], (Json{{"OK", 50}, {"RESOURCE_EXHAUSTED", 50}}));
  EXPECT_EQ(report_["result"]["first_messages"]["RESOURCE_EXHAUSTED"], "queue: full");
  EXPECT_THAT(out_, HasSubstr("RESOURCE_EXHAUSTED 50, the first: queue: full"));
  server_.FailFrom(server_.calls() + 91, absl::ResourceExhaustedError("queue: full"));
  arguments.push_back("--max_error_share=0.1");
  Run(arguments);
  EXPECT_EQ(code_, kExitOk) << err_;
  EXPECT_EQ(report_["result"]["errors"], 10);
}

TEST_F(NormloadTest, AMissedObjectiveFailsTheRunOnlyIfAsked) {
  const std::vector<std::string> missed = {"--model=norm", "--shape=1x4x5", "--requests=10",
                                           "--slo=p99=1ns"};
  Run(missed);
  EXPECT_EQ(code_, kExitOk) << err_;
  std::vector<std::string> required = missed;
  required.push_back("--require_slo");
  Run(required);
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_THAT(err_, HasSubstr("the objective p99 <= 1ns was missed: it took "));
  required[3] = "--slo=p99=1h";
  Run(required);
  EXPECT_EQ(code_, kExitOk) << err_;
}

TEST_F(NormloadTest, AServerThatDiesHalfWayEndsTheRunWithAReport) {
  std::thread killer([this] {
    server_.WaitForCalls(100);
    server_.Stop();
  });
  Run({"--model=norm", "--shape=1x4x5", "--duration=100s", "--concurrency=4",
       "--give_up_after=20"});
  killer.join();
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_GT(report_["result"]["ok"], 50);
  EXPECT_EQ(report_["result"]["stopped_by"], "server gone");
  EXPECT_EQ(report_["error"]["code"], "UNAVAILABLE");
}

TEST_F(NormloadTest, ADeadlineIsAnError) {
  server_.HoldFrom(20);
  Run({"--model=norm", "--shape=1x4x5", "--requests=20", "--concurrency=1", "--timeout=1s"});
  server_.Release();
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_EQ(report_["result"]["codes"], (Json{{"OK", 19}, {"DEADLINE_EXCEEDED", 1}}));
}

TEST_F(NormloadTest, StreamsToAServerThatDiesHalfWayEndWithAReport) {
  std::thread killer([this] {
    server_.WaitForCalls(50);
    server_.Stop();
  });
  Run({"--model=norm", "--shape=4x4x500", "--stream", "--duration=100s", "--concurrency=4",
       "--give_up_after=20"});
  killer.join();
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_EQ(report_["result"]["stopped_by"], "server gone");
  EXPECT_GT(report_["result"]["ok"], 20);
}

TEST_F(NormloadTest, ErrorsBeyondTheShareStopTheRun) {
  server_.FailFrom(1, absl::ResourceExhaustedError("queue: full"));
  Run({"--model=norm", "--shape=1x4x5", "--duration=100s", "--concurrency=1",
       "--stop_error_share=0.5"});
  EXPECT_EQ(code_, kExitFailed);
  EXPECT_EQ(report_["result"]["stopped_by"], "too many errors");
}

TEST_F(NormloadTest, AReportThatCannotBeWrittenIsToldBeforeTheRun) {
  RunPlainly({"--server=" + server_.target(), "--model=norm", "--shape=1x4x5", "--requests=1",
              "--warmup=0s", "--quiet", "--json=" + folder_.File("no/such/folder.json")});
  EXPECT_EQ(code_, kExitUsage);
  EXPECT_THAT(err_, HasSubstr("folder.json: cannot write there"));
  EXPECT_EQ(server_.calls(), 0);
}

// What a call meets where one side speaks TLS and the other does not, or distrusts it.
class NormloadTlsTest : public NormloadRun {
 protected:
  std::shared_ptr<grpc::ServerCredentials> ServerTls() const {
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({pki_.server.key, pki_.server.certificate});
    return grpc::SslServerCredentials(options);
  }

  // The exit code.
  int Run(test::FakeNormService& server, std::vector<std::string> arguments) {
    server.AddModel("norm", test::ConfigOf("instance_norm { channels: 4 }"));
    test::WriteFile(folder_.File("ca.pem"), pki_.authority.certificate);
    const testing::TestCertificate other = testing::MakeCertificate(
        {.name = "another authority", .alternative_names = "", .authority = true});
    test::WriteFile(folder_.File("other.pem"), other.certificate);
    test::WriteFile(folder_.File("namesake.pem"), testing::TestPki().authority.certificate);
    arguments.insert(arguments.end(), {"--model=norm", "--shape=1x4x5", "--requests=5"});
    RunAgainst(server, arguments);
    return code_;
  }

  const testing::TestPki pki_ = {};
};

TEST_F(NormloadTlsTest, SpeaksTlsToWhomItTrusts) {
  test::FakeNormService server(ServerTls());
  EXPECT_EQ(Run(server, {"--tls_ca=" + folder_.File("ca.pem")}), kExitOk) << err_;
  EXPECT_EQ(report_["result"]["ok"], 5);
}

TEST_F(NormloadTlsTest, EachMismatchIsOneClearMessageAndAReport) {
  test::FakeNormService secure(ServerTls());
  test::FakeNormService clear;
  struct Case {
    test::FakeNormService& server;
    std::vector<std::string> arguments;
    std::string message;
  };
  for (const Case& mismatch :
       {Case{secure, {}, "--tls"}, Case{clear, {"--tls"}, "without --tls"},
        Case{secure, {"--tls_ca=" + folder_.File("other.pem")}, "--tls_ca"},
        Case{secure, {"--tls_ca=" + folder_.File("namesake.pem")}, "--tls_ca"}}) {
    EXPECT_EQ(Run(mismatch.server, mismatch.arguments), kExitFailed);
    EXPECT_THAT(err_, HasSubstr(mismatch.message));
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_EQ(report_["result"]["requests"], 0);
    EXPECT_FALSE(report_["error"].is_null());
  }
}

TEST_F(NormloadTlsTest, AFileThatCannotBeReadIsTheCommandLinesFault) {
  const std::string absent = folder_.File("absent.pem");
  for (const std::string flag : {"--tls_ca", "--token_file"}) {
    RunPlainly({"--model=norm", "--shape=1x4x5", "--server=127.0.0.1:1", flag + "=" + absent});
    EXPECT_EQ(code_, kExitUsage);
    EXPECT_THAT(err_, HasSubstr("normload: " + flag + ": " + absent + ": cannot read"));
    EXPECT_EQ(out_, "");
  }
}

using NormloadUsageTest = NormloadRun;

TEST_F(NormloadUsageTest, WrongCommandLinesAndHelp) {
  RunPlainly({"--colour"});
  EXPECT_EQ(code_, kExitUsage);
  EXPECT_THAT(err_, HasSubstr("unknown flag --colour"));
  EXPECT_EQ(out_, "");
  RunPlainly({"--help"});
  EXPECT_EQ(code_, kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("--max_error_share"), HasSubstr("Exit codes")));
}

}  // namespace
}  // namespace normd::load
