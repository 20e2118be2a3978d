// The programs and a server as processes, with tensors in memory that they share.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "client/scrape/http_get.h"
#include "client/scrape/metrics_text.h"
#include "nlohmann/json.hpp"
#include "tests/server/process/normd_process.h"
#include "tests/support/pass_descriptors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"
#include "wire/region_message.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

class SharedMemoryProcessTest : public ::testing::Test {
 protected:
  // The exit code, with what the program wrote to stderr.
  static int Run(std::vector<std::string> arguments, std::string* error = nullptr) {
    ChildProcess program(arguments);
    const int code = program.Wait();
    if (error != nullptr) *error = program.output();
    EXPECT_TRUE(code == 0 || error != nullptr) << arguments[0] << ": " << program.output();
    return code;
  }
  // A run of normload's, and its report.
  nlohmann::json Load(std::vector<std::string> flags) {
    const std::string report = folder_.File("report.json");
    std::vector<std::string> arguments = {NORMLOAD_BINARY,
                                          "--quiet",
                                          "--warmup=0s",
                                          "--requests=300",
                                          "--verify",
                                          "--verify_every=1",
                                          "--model_repository=" NORMD_DEMO_MODELS,
                                          "--json=" + report};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(Run(arguments), 0);
    std::ifstream file(report);
    return nlohmann::json::parse(file, nullptr, false);
  }
  double Metric(const std::string& series) { return MetricOf(server_, series); }
  static double MetricOf(const NormdProcess& server, const std::string& series) {
    const auto url = client::ParseHttpUrl("http://" + server.metrics_address() + "/metrics");
    const auto text = client::HttpGet(*url, std::chrono::seconds(10));
    EXPECT_TRUE(text.ok()) << text.status();
    const std::string key = "\n" + series + " ";
    const std::size_t at = text.ok() ? text->find(key) : std::string::npos;
    double value = 0;
    if (at == std::string::npos) return value;
    const std::size_t begin = at + key.size();
    EXPECT_TRUE(absl::SimpleAtod(text->substr(begin, text->find('\n', begin) - begin), &value));
    return value;
  }

  const TempFolder folder_;
  const std::string regions_ = "unix://" + folder_.File("regions");
  NormdProcess server_{{"--shared_memory=fd", "--shared_memory_listen=" + regions_}};
};

TEST_F(SharedMemoryProcessTest, TheExampleNormalizesInPlace) {
  EXPECT_EQ(Run({EXAMPLE_BINARY, server_.grpc_address(), regions_}), 0);
  EXPECT_EQ(Metric("normd_shared_tensor_bytes_total{direction=\"in\",memory=\"host\"}"),
            64 * 128 * 128 * 4);
  EXPECT_EQ(Metric("normd_shared_tensor_bytes_total{direction=\"out\",memory=\"host\"}"),
            64 * 128 * 128 * 4);
  std::string error;
  EXPECT_EQ(Run({EXAMPLE_BINARY, server_.grpc_address(), "unix:///nowhere"}, &error), 1);
  EXPECT_THAT(error, HasSubstr("unix:///nowhere"));
}

// In the middle of a load the server's model becomes another one of the same version.
TEST_F(SharedMemoryProcessTest, NormloadSeesWrongResponsesInRegions) {
  for (const char* protocol : {"normd", "oip"}) {
    SCOPED_TRACE(protocol);
    const std::string own = absl::StrCat(folder_.path(), "/", protocol);
    const std::string model = own + "/models/rms_norm_4096";
    std::filesystem::create_directories(own + "/models");
    std::filesystem::copy(NORMD_DEMO_MODELS "/rms_norm_4096", model,
                          std::filesystem::copy_options::recursive);
    const std::string regions = "unix://" + own + "/regions";
    const NormdProcess server({"--shared_memory=fd", "--shared_memory_listen=" + regions,
                               "--model_repository=" + own + "/models"});
    ChildProcess load({NORMLOAD_BINARY, "--quiet", "--plane=shm", "--shared_memory=" + regions,
                       "--server=" + server.grpc_address(), absl::StrCat("--protocol=", protocol),
                       "--mix=rms_norm_4096:2x4096:float32", "--warmup=0s", "--duration=120s",
                       "--verify", "--verify_every=1", "--model_repository=" NORMD_DEMO_MODELS,
                       "--json=" + own + "/report.json"});
    const auto await_responses = [&] {
      const char* const bytes_out =
          "normd_shared_tensor_bytes_total{direction=\"out\",memory=\"host\"}";
      const double wanted = MetricOf(server, bytes_out) + 100 * 2 * 4096 * 4;
      WaitUntil([&] { return MetricOf(server, bytes_out) >= wanted; });
    };
    await_responses();
    std::ofstream(model + "/config.textproto") << "rms_norm { normalized_shape: 4096 eps: 1 }\n";
    ASSERT_EQ(Run({NORMCTL_BINARY, "load", "rms_norm_4096", "--server=" + server.grpc_address()}),
              0);
    await_responses();
    load.Signal(SIGINT);
    EXPECT_EQ(load.Wait(), 1);
    EXPECT_THAT(load.output(), HasSubstr("verified responses are wrong"));
    std::ifstream file(own + "/report.json");
    const auto result = nlohmann::json::parse(file, nullptr, false)["result"];
    EXPECT_GE(result["wrong"], 50);
    EXPECT_LE(result["wrong"], result["verified"].get<int>() - 50);
  }
}

TEST_F(SharedMemoryProcessTest, NormctlWritesTheSameFileAsWithMessages) {
  const std::string x = folder_.File("x.npy");
  const std::string r = folder_.File("r.npy");
  ASSERT_EQ(Run({NORMCTL_BINARY, "random", x, "--shape=3x4096"}), 0);
  ASSERT_EQ(Run({NORMCTL_BINARY, "random", r, "--shape=3x4096", "--seed=2"}), 0);
  const auto normalize = [&](const std::string& name, std::vector<std::string> flags) {
    std::vector<std::string> arguments = {
        NORMCTL_BINARY,
        "normalize",
        "--server=" + server_.grpc_address(),
        "--model=add_rms_norm_4096",
        "x=" + x,
        "residual=" + r,
        "-o",
        absl::StrCat("y=", folder_.path(), "/", name, ".y.npy"),
        "-o",
        absl::StrCat("residual_out=", folder_.path(), "/", name, ".r.npy"),
        "--verify",
        "--model_repository=" NORMD_DEMO_MODELS};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ASSERT_EQ(Run(arguments), 0);
  };
  normalize("message", {});
  EXPECT_EQ(Metric("normd_shared_tensor_bytes_total{direction=\"in\",memory=\"host\"}"), 0);
  normalize("shared", {"--shared_memory=" + regions_});
  EXPECT_EQ(Metric("normd_shared_tensor_bytes_total{direction=\"in\",memory=\"host\"}"),
            2 * 3 * 4096 * 4);
  EXPECT_EQ(Metric("normd_shared_tensor_bytes_total{direction=\"out\",memory=\"host\"}"),
            2 * 3 * 4096 * 4);
  for (const char* output : {".y.npy", ".r.npy"}) {
    const auto read = [&](const char* name) {
      std::ifstream file(absl::StrCat(folder_.path(), "/", name, output), std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_FALSE(read("shared").empty());
    EXPECT_EQ(read("shared"), read("message"));
  }
}

TEST_F(SharedMemoryProcessTest, NormloadLoadsThroughSharedMemoryAndVerifies) {
  for (const char* protocol : {"--protocol=normd", "--protocol=oip"}) {
    const nlohmann::json report =
        Load({"--server=" + server_.grpc_address(), "--plane=shm", "--shared_memory=" + regions_,
              protocol, "--concurrency=4",
              "--mix=instance_norm_64:2x64x9x9:float32:3,rms_norm_4096:7x4096:bf16,"
              "add_rms_norm_4096:3x4096:f16:residual=3x4096"});
    EXPECT_EQ(report["options"]["plane"], "shm");
    EXPECT_EQ(report["result"]["verified"], 300);
    EXPECT_EQ(report["result"]["wrong"], 0);
    EXPECT_EQ(report["result"]["ok"], 300);
  }
  const double in = Metric("normd_shared_tensor_bytes_total{direction=\"in\",memory=\"host\"}");
  EXPECT_GT(in, 600 * 2 * 64 * 81);
  // Messages without tensors, of which the smallest has 41,472 bytes: nor in a first call.
  EXPECT_LT(Metric("normd_payload_bytes_total{direction=\"in\"}"), 606 * 300);
  EXPECT_EQ(Metric("normd_shared_regions{kind=\"descriptor\"}"), 0) << "they go with the client";
}

TEST_F(SharedMemoryProcessTest, NormloadSaysWhatIsMissing) {
  std::string error;
  const std::vector<std::string> base = {NORMLOAD_BINARY,
                                         "--quiet",
                                         "--requests=1",
                                         "--plane=shm",
                                         "--model=instance_norm_64",
                                         "--server=" + server_.grpc_address()};
  std::vector<std::string> nowhere = base;
  nowhere.push_back("--shared_memory=unix://" + folder_.File("nobody"));
  EXPECT_EQ(Run(nowhere, &error), 1);
  EXPECT_THAT(error, HasSubstr("--shared_memory: "));
  EXPECT_THAT(error, HasSubstr(folder_.File("nobody")));
}

// What a client can register must leave mappings to everything else: without any, no memory.
TEST_F(SharedMemoryProcessTest, AsManyRegionsAsMayBeLeaveTheServerItsMappings) {
  const std::string regions = "unix://" + folder_.File("many");
  NormdProcess server({"--shared_memory=fd", "--shared_memory_listen=" + regions,
                       "--max_shared_regions=65536", "--max_identity_shared_regions=65536"});
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  folder_.File("many").copy(at.sun_path, sizeof(at.sun_path) - 1);
  const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  const Descriptor memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(memory.get(), 4096), 0);
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  absl::StatusOr<RegionReply> reply = RegionReply();
  for (int i = 0; i <= 65536 && reply.ok() && reply->code == absl::StatusCode::kOk; ++i) {
    ASSERT_GT(PassDescriptors(socket.get(), EncodeRegionRequest({}), {memory.get()}), 0) << i;
    char bytes[kMaxRegionPacketBytes];
    const ssize_t size = recv(socket.get(), bytes, sizeof(bytes), 0);
    ASSERT_GT(size, 0) << i;
    reply = DecodeRegionReply(absl::string_view(bytes, static_cast<std::size_t>(size)));
  }
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->code, absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(reply->text, HasSubstr("_shared_regions"));
  std::ifstream maps(absl::StrCat("/proc/", server.child().pid(), "/maps"));
  const auto mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  std::int64_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  EXPECT_LE(mappings, std::max<std::int64_t>(limit - limit / 3, 1));
  // Large messages are mappings of their own.
  const auto stub = server.NewStub();
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    const grpc::Status status = stub->Normalize(&context, RmsNormRequest(512), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_GT(MetricOf(server, "normd_shared_regions{kind=\"descriptor\"}"), 1);
}

}  // namespace
}  // namespace normd::testing
