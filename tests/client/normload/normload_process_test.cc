// The two programs as processes: exit codes, and what SIGINT does.

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/fake_norm_service.h"
#include "tests/support/temp_repository.h"

extern char** environ;

namespace normd::test {
namespace {

pid_t Spawn(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  return pid;
}

// The exit code; 128 + the signal for a process that a signal ended.
int WaitFor(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest() {
    v1::ModelConfig config;
    config.mutable_instance_norm()->set_channels(4);
    server_.AddModel("norm", config);
  }
  FakeNormService server_;
  const TempFolder folder_;
};

TEST_F(ProcessTest, SigintStopsTheLoadAndReports) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::int64_t before = server_.calls();
    const pid_t pid =
        Spawn({NORMLOAD_PATH, "--server=" + server_.target(), "--model=norm", "--shape=1x4x5",
               "--duration=1h", "--warmup=0s", "--quiet", "--json=" + folder_.File("r.json")});
    server_.WaitForCalls(before + 100);
    ASSERT_EQ(kill(pid, signal), 0);
    EXPECT_EQ(WaitFor(pid), 0);
    const auto report = nlohmann::json::parse(ReadFile(folder_.File("r.json")), nullptr, false);
    ASSERT_TRUE(report.is_object());
    EXPECT_EQ(report["result"]["stopped_by"], "interrupted");
    EXPECT_GE(report["result"]["ok"], 1);
    EXPECT_EQ(report["result"]["errors"], 0);
  }
}

TEST_F(ProcessTest, ExitCodesAreThoseDocumented) {
  EXPECT_EQ(WaitFor(Spawn({NORMCTL_PATH, "health", "--server=" + server_.target()})), 0);
  EXPECT_EQ(WaitFor(Spawn({NORMCTL_PATH, "model", "no", "--server=" + server_.target()})), 1);
  EXPECT_EQ(WaitFor(Spawn({NORMCTL_PATH, "dance"})), 2);
  EXPECT_EQ(WaitFor(Spawn({NORMLOAD_PATH, "--server=" + server_.target(), "--model=norm",
                           "--shape=1x4x5", "--requests=5", "--warmup=0s", "--quiet"})),
            0);
  EXPECT_EQ(WaitFor(Spawn({NORMLOAD_PATH, "--server=" + server_.target(), "--model=no"})), 1);
  EXPECT_EQ(WaitFor(Spawn({NORMLOAD_PATH, "--model=norm", "--rate=-1"})), 2);
}

}  // namespace
}  // namespace normd::test
