// The normd binary from the outside: start, stop and failure to start.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/scrape/http_get.h"
#include "tests/server/process/normd_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

// gRPC's own shutdown would wait 10 s for the poller of such a response.
TEST(ProcessTest, EndsAtOnceAfterAResponseThatWaitedForItsReader) {
  NormdProcess normd({"--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  grpc::ClientContext context;
  v1::NormalizeResponse response;
  ASSERT_TRUE(normd.NewStub()->Normalize(&context, RmsNormRequest(1000), &response).ok());
  const auto begin = std::chrono::steady_clock::now();
  normd.child().Signal(SIGTERM);
  EXPECT_EQ(normd.child().Wait(), 0) << normd.child().output();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(6));
}

// Every signal but those that cannot be taken, that stop a process or do nothing by default, and
// those of faults.
std::vector<int> SignalsThatEnd() {
  std::vector<int> signals;
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    constexpr int kOthers[] = {SIGKILL, SIGSTOP, SIGTSTP,  SIGTTIN, SIGTTOU, SIGCONT,
                               SIGCHLD, SIGURG,  SIGWINCH, SIGSEGV, SIGBUS,  SIGILL,
                               SIGFPE,  SIGTRAP, SIGSYS,   SIGABRT};
    const bool reserved = signal > SIGSYS && signal < SIGRTMIN;  // By the C library.
    const bool other =
        std::find(std::begin(kOthers), std::end(kOthers), signal) != std::end(kOthers);
    if (!reserved && !other) signals.push_back(signal);
  }
  return signals;
}

TEST(ProcessTest, NoSignalEndsItWithoutADrain) {
  const std::set<int> drain = {SIGTERM, SIGINT, SIGQUIT, SIGPWR, SIGXCPU};
  NormdProcess normd({"--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  for (const int signal : SignalsThatEnd()) {
    if (drain.count(signal) != 0) continue;
    normd.child().Signal(signal);
    if (signal == SIGPIPE || signal == SIGXFSZ) continue;  // They come of every failed write.
    const std::string name = signal >= SIGRTMIN ? "RTMIN+" + std::to_string(signal - SIGRTMIN)
                                                : std::string(sigabbrev_np(signal));
    const std::string outcome =
        signal == SIGHUP ? ": looking at the model repository" : ", which is ignored";
    EXPECT_NE(normd.child().ReadUntil("received SIG" + name + outcome), "") << name;
  }
  grpc::ClientContext context;
  v1::NormalizeResponse response;
  EXPECT_TRUE(normd.NewStub()->Normalize(&context, RmsNormRequest(2), &response).ok());
  for (const int signal : drain) {
    NormdProcess drained({"--lame_duck=0s"});
    ASSERT_NE(drained.grpc_address(), "") << drained.child().output();
    drained.child().Signal(signal);
    EXPECT_EQ(drained.child().Wait(), 0) << strsignal(signal);
    EXPECT_THAT(drained.child().output(),
                HasSubstr(std::string("received SIG") + sigabbrev_np(signal)));
    EXPECT_THAT(drained.child().output(), HasSubstr("health is NOT_SERVING"));
  }
}

TEST(ProcessTest, ASecondSignalEndsTheLameDuck) {
  NormdProcess normd({"--lame_duck=1h"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  normd.child().Signal(SIGINT);
  ASSERT_NE(normd.child().ReadUntil("health is NOT_SERVING"), "");
  normd.child().Signal(SIGTERM);
  EXPECT_EQ(normd.child().Wait(), 0) << normd.child().output();
}

TEST(ProcessTest, EndsWithThreeWhenTheDrainTimeoutPassesWithCallsInside) {
  NormdProcess normd({"--lame_duck=0s", "--drain_timeout=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  // A stream that has answered its first half, and waits for the second.
  v1::NormalizeStreamRequest header;
  *header.mutable_header() = RmsNormRequest(0);
  header.mutable_header()->mutable_inputs(0)->set_shape(0, 128);
  v1::NormalizeStreamRequest half;
  half.set_chunk(RmsNormRequest(64).inputs(0).data());
  const auto stub = normd.NewStub();
  grpc::ClientContext context;
  const auto stream = stub->NormalizeStream(&context);
  v1::NormalizeStreamResponse answer;
  ASSERT_TRUE(stream->Write(header) && stream->Write(half) && stream->Read(&answer));
  normd.child().Signal(SIGTERM);
  EXPECT_EQ(normd.child().Wait(), 3) << normd.child().output();
  EXPECT_THAT(normd.child().output(), HasSubstr("giving up 1 calls after the drain timeout"));
  while (stream->Read(&answer)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// One call after the other until `stop`, of a kind for each: how many ended otherwise than with OK
// and UNAVAILABLE.
int CallThroughTheStop(const NormdProcess& normd, int kind, const std::atomic<bool>& stop,
                       std::atomic<int>& refused) {
  const auto stub = normd.NewStub();
  v1::NormalizeRequest request = RmsNormRequest(kind == 1 ? 64 : 1);
  v1::NormalizeStreamRequest header;
  *header.mutable_header() = request;
  header.mutable_header()->mutable_inputs(0)->clear_data();
  v1::NormalizeStreamRequest chunk;
  chunk.set_chunk(request.inputs(0).data());
  int others = 0;
  while (!stop) {
    grpc::ClientContext context;
    grpc::Status status;
    if (kind < 2) {
      v1::NormalizeResponse response;
      status = stub->Normalize(&context, request, &response);
    } else if (kind == 2) {
      const auto stream = stub->NormalizeStream(&context);
      v1::NormalizeStreamResponse answer;
      if (stream->Write(header) && stream->Write(chunk)) stream->WritesDone();
      while (stream->Read(&answer)) {
      }
      status = stream->Finish();
    } else {
      v1::GetServerInfoResponse response;
      status = stub->GetServerInfo(&context, {}, &response);
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      ++refused;
    } else if (!status.ok()) {
      std::cerr << "kind " << kind << ": " << status.error_code() << " " << status.error_message()
                << "\n";
      ++others;
    }
  }
  return others;
}

TEST(ProcessTest, EveryCallOfAStopIsAnsweredOrUnavailable) {
  for (int round = 0; round < 6; ++round) {
    NormdProcess normd({"--lame_duck=50ms"});
    ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
    std::atomic<bool> stop{false};
    std::atomic<int> refused{0};
    std::atomic<int> others{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back([&, i] { others += CallThroughTheStop(normd, i % 4, stop, refused); });
    }
    normd.child().Signal(SIGTERM);
    EXPECT_EQ(normd.child().Wait(), 0) << normd.child().output();
    // Beyond the process's end.
    const int seen = refused;
    WaitUntil([&] { return refused >= seen + 8; });
    stop = true;
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(others, 0) << "in round " << round;
  }
}

TEST(ProcessTest, AStopDoesNotWaitForStreamsWhoseClientsSendNothing) {
  NormdProcess normd({"--lame_duck=0s", "--drain_timeout=1h", "--max_connection_calls=16"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  const auto stub = normd.NewStub();
  // No header, a header, a part of a row, a row, and all but the half-close.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<
      grpc::ClientReaderWriter<v1::NormalizeStreamRequest, v1::NormalizeStreamResponse>>>
      streams;
  const std::string data = RmsNormRequest(2).inputs(0).data();
  for (const int bytes : {-1, 0, 100, 16384, 32768}) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub->NormalizeStream(contexts.back().get()));
    v1::NormalizeStreamRequest message;
    *message.mutable_header() = RmsNormRequest(2);
    message.mutable_header()->mutable_inputs(0)->clear_data();
    v1::NormalizeStreamResponse answer;
    if (bytes < 0) continue;
    ASSERT_TRUE(streams.back()->Write(message) && streams.back()->Read(&answer));
    message.set_chunk(data.substr(0, static_cast<std::size_t>(bytes)));
    if (bytes > 0) {
      ASSERT_TRUE(streams.back()->Write(message));
    }
  }
  normd.child().Signal(SIGTERM);
  for (const auto& stream : streams) {
    v1::NormalizeStreamResponse answer;
    while (stream->Read(&answer)) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(normd.child().Wait(), 0) << normd.child().output();
}

// The most memory that the process has ever had.
double PeakMegabytes(const ChildProcess& child) {
  std::ifstream status("/proc/" + std::to_string(child.pid()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

TEST(ProcessTest, AStreamTakesNoMoreMemoryThanItsWindow) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "a sanitizer's memory says nothing of the server's";
#endif
  NormdProcess normd({"--lame_duck=0s", "--stream_window_bytes=4194304"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  constexpr int kChunks = 512;  // Chunks of 1 MiB, which is 64 rows.
  v1::NormalizeStreamRequest chunk;
  chunk.set_chunk(RmsNormRequest(64).inputs(0).data());
  v1::NormalizeStreamRequest header;
  *header.mutable_header() = RmsNormRequest(0);
  header.mutable_header()->mutable_inputs(0)->set_shape(0, 64 * kChunks);

  const auto stub = normd.NewStub();
  grpc::ClientContext context;
  const auto stream = stub->NormalizeStream(&context);
  std::thread writer([&] {
    bool open = stream->Write(header);
    for (int i = 0; open && i < kChunks; ++i) open = stream->Write(chunk);
    stream->WritesDone();
  });
  std::size_t bytes = 0;
  v1::NormalizeStreamResponse answer;
  while (stream->Read(&answer)) bytes += answer.chunk().size();
  writer.join();
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(bytes, kChunks * chunk.chunk().size());
  EXPECT_LT(PeakMegabytes(normd.child()), 200) << "of a tensor of " << kChunks << " MiB";
  EXPECT_GT(PeakMegabytes(normd.child()), 1);
}

// As normd itself answers, whose words gRPC passes on in its own.
TEST(ProcessTest, AClientAtTheWrongPortOrWithNeedlessTlsIsToldWhatToTry) {
  NormdProcess normd({"--http_listen=127.0.0.1:0"});
  for (const auto& [arguments, hint] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--tls", "--server=" + normd.grpc_address()}, "try without --tls"},
           {{"--tls", "--server=" + normd.metrics_address()}, "try without --tls"},
           {{"--server=" + normd.metrics_address()}, "is it the gRPC port (8001)"},
           {{"--server=" + normd.http_address()}, "is it the gRPC port (8001)"}}) {
    std::vector<std::string> line = {NORMCTL_BINARY, "info"};
    line.insert(line.end(), arguments.begin(), arguments.end());
    ChildProcess normctl(line);
    EXPECT_EQ(normctl.Wait(), 1);
    EXPECT_THAT(normctl.output(), HasSubstr(hint)) << arguments.back();
  }
}

TEST(ProcessTest, FailsToStartOnAPortInUse) {
  NormdProcess first;
  ASSERT_NE(first.grpc_address(), "") << first.child().output();
  NormdProcess second({"--listen=" + first.grpc_address()});
  EXPECT_EQ(second.child().Wait(), 1);
  EXPECT_THAT(second.child().output(),
              HasSubstr("cannot start: listen: " + first.grpc_address() + " cannot be bound"));
  for (const std::string flag : {"http_listen", "admin_listen", "metrics_listen"}) {
    NormdProcess third({"--" + flag + "=" + first.metrics_address()});
    EXPECT_EQ(third.child().Wait(), 1);
    EXPECT_THAT(third.child().output(), HasSubstr("cannot start: " + flag + ": "));
    EXPECT_THAT(third.child().output(), HasSubstr(first.metrics_address()));
  }
}

TEST(ProcessTest, FailsToStartWithFewDescriptors) {
  for (const char* few : {"6", "12", "22", "24", "40"}) {
    ChildProcess normd({"prlimit", std::string("--nofile=") + few, NORMD_BINARY, "--device=cpu",
                        "--model_repository=" NORMD_DEMO_MODELS, "--listen=127.0.0.1:0",
                        "--metrics_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"});
    EXPECT_EQ(normd.Wait(), 1) << few;
    EXPECT_THAT(normd.output(), HasSubstr("cannot start: descriptors: ")) << few;
    EXPECT_THAT(normd.output(), HasSubstr(" are left (RLIMIT_NOFILE), wanted at least ")) << few;
  }
}

TEST(ProcessTest, FailsToStartWithoutARepository) {
  NormdProcess normd({"--model_repository=/nonexistent"});
  EXPECT_EQ(normd.child().Wait(), 1);
  EXPECT_THAT(normd.child().output(), HasSubstr("cannot start: model repository"));
}

TEST(ProcessTest, RefusesAWrongCommandLineWithTwo) {
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--no_such_flag=1", "no such flag"},
           {"positional", "wanted only flags"},
           {"--max_request_bytes=many", "wanted BYTES, a whole number"},
           {"--max_request_bytes=0", "wanted from 1"},
           {"--device=gpu", "--device: \"gpu\": wanted auto, cpu, cuda or cuda:0,1"},
           {"--policy_file=/nonexistent/p", "--policy_file: \"/nonexistent/p\": no such file"}}) {
    NormdProcess normd({wrong});
    EXPECT_EQ(normd.child().Wait(), 2) << wrong;
    EXPECT_THAT(normd.child().output(), HasSubstr("normd: ")) << wrong;
    EXPECT_THAT(normd.child().output(), HasSubstr(message));
  }
}

TEST(ProcessTest, TellsThatTheSystemGivesNoThread) {
  // The limit counts the threads of a user, and does not hold for root.
  std::vector<std::string> command;
  if (geteuid() == 0) command = {"setpriv", "--reuid=54321", "--clear-groups"};
  for (const char* argument :
       {"prlimit", "--nproc=1", NORMD_BINARY, "--model_repository=" NORMD_DEMO_MODELS,
        "--device=cpu", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--http_listen="}) {
    command.push_back(argument);
  }
  ChildProcess normd(command);
  const int code = normd.Wait();
  if (normd.output().find("Permission denied") != std::string::npos) {
    GTEST_SKIP() << "another user cannot reach the program: " << normd.output();
  }
  EXPECT_EQ(code, 1);
  EXPECT_THAT(normd.output(), ::testing::StartsWith("normd: cannot go on: the system gives no "
                                                    "thread: Resource temporarily unavailable"));
}

TEST(ProcessTest, StartsThoughAModelIsBroken) {
  const TempFolder root;
  std::filesystem::copy(NORMD_DEMO_MODELS, root.path(), std::filesystem::copy_options::recursive);
  root.Write("group_norm_64_8/config.textproto", "group_norm { channels: -1 }");
  NormdProcess normd({"--model_repository=" + root.path(), "--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  EXPECT_THAT(normd.child().output(), HasSubstr("(1 failed)"));

  const auto stub = normd.NewStub();
  grpc::ClientContext context;
  v1::GetModelRequest request;
  v1::GetModelResponse response;
  request.set_model("group_norm_64_8");
  EXPECT_TRUE(stub->GetModel(&context, request, &response).ok());
  EXPECT_EQ(response.model().state(), v1::ModelInfo::FAILED);
  EXPECT_THAT(response.model().error(), HasSubstr("channels"));
  grpc::ClientContext other;
  v1::NormalizeResponse normalized;
  EXPECT_TRUE(stub->Normalize(&other, RmsNormRequest(1), &normalized).ok());
  normd.child().Signal(SIGTERM);
  EXPECT_EQ(normd.child().Wait(), 0);
}

// A folder of models that goes with the test.
class ProcessModelsTest : public ::testing::Test {
 protected:
  void Add(const std::string& model) const {
    std::filesystem::copy(NORMD_DEMO_MODELS "/" + model, root_.File(model),
                          std::filesystem::copy_options::recursive);
  }
  static bool IsReady(const NormdProcess& normd) {
    const auto url = client::ParseHttpUrl("http://" + normd.metrics_address() + "/v2/health/ready");
    return client::HttpGet(*url, std::chrono::seconds(10)).ok();
  }

  const TempFolder root_;
};

TEST_F(ProcessModelsTest, IsReadyOnceAModelIsLoaded) {
  NormdProcess normd(
      {"--model_repository=" + root_.path(), "--model_poll_interval=10ms", "--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  EXPECT_THAT(normd.child().output(),
              HasSubstr("[warning] no model is loaded: health is NOT_SERVING until one is"));
  EXPECT_FALSE(IsReady(normd));
  Add("rms_norm_4096");
  EXPECT_NE(normd.child().ReadUntil("health is SERVING: model rms_norm_4096 is loaded"), "");
  EXPECT_TRUE(IsReady(normd));
  // Nobody else serves what a client would ask for.
  std::filesystem::remove_all(root_.File("rms_norm_4096"));
  EXPECT_NE(normd.child().ReadUntil("health is NOT_SERVING: no model is loaded any more"), "");
  EXPECT_FALSE(IsReady(normd));
}

TEST_F(ProcessModelsTest, LoadsOnSighupWhatHasCome) {
  Add("rms_norm_4096");
  NormdProcess normd({"--model_repository=" + root_.path(), "--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  Add("layer_norm_1024");
  normd.child().Signal(SIGHUP);
  EXPECT_NE(normd.child().ReadUntil("model layer_norm_1024, version 1: loaded"), "");
  std::filesystem::remove_all(root_.File("layer_norm_1024"));
  normd.child().Signal(SIGHUP);
  EXPECT_NE(normd.child().ReadUntil("model layer_norm_1024, version 1: unloaded"), "");
  EXPECT_TRUE(IsReady(normd));
}

// Waits until the file has `text`.
void WaitForText(const std::string& path, const std::string& text) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string found;
  WaitUntil([&] {
    std::ifstream file(path);
    found.assign(std::istreambuf_iterator<char>(file), {});
    return found.find(text) != std::string::npos || std::chrono::steady_clock::now() >= end;
  });
  EXPECT_NE(found.find(text), std::string::npos) << "has no " << text << ": " << found;
}

TEST_F(ProcessModelsTest, OpensItsLogFileAgainOnSighup) {
  Add("rms_norm_4096");
  const std::string path = root_.File(".log");
  ChildProcess normd({NORMD_BINARY, "--model_repository=" + root_.path(), "--device=cpu",
                      "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--http_listen=",
                      "--lame_duck=0s", "--log_file=" + path, "--log_format=json"});
  WaitForText(path, "\"message\":\"serving: ");
  std::filesystem::rename(path, path + ".1");
  normd.Signal(SIGHUP);
  WaitForText(path, "received SIGHUP");
  normd.Signal(SIGTERM);
  EXPECT_EQ(normd.Wait(), 0);
  EXPECT_EQ(normd.output(), "");
  WaitForText(path, "\"message\":\"stopped\"}\n");
}

TEST_F(ProcessModelsTest, FailsToStartWhereTheLogFileCannotBeOpened) {
  NormdProcess normd({"--log_file=" + root_.path()});
  EXPECT_EQ(normd.child().Wait(), 1);
  EXPECT_EQ(normd.child().output(),
            "normd: --log_file: \"" + root_.path() + "\": Is a directory\n");
}

TEST_F(ProcessModelsTest, IsReadyWithoutModelsWhereThatIsAllowed) {
  NormdProcess normd({"--model_repository=" + root_.path(), "--allow_no_models", "--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();
  EXPECT_THAT(normd.child().output(), HasSubstr("[warning] no model is loaded\n"));
  EXPECT_TRUE(IsReady(normd));
}

}  // namespace
}  // namespace normd::testing
