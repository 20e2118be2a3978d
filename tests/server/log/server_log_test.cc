#include "server/log/server_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "spdlog/spdlog.h"

namespace normd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class ServerLogTest : public ::testing::Test {
 protected:
  ServerLogTest() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  // The pipe stays open: spdlog's default logger writes to it until the next test's does.
  std::string ReadSome() {
    char buffer[65536];
    const ssize_t count = read(ends_[0], buffer, sizeof(buffer));
    return {buffer, count > 0 ? static_cast<std::size_t>(count) : 0};
  }

  int ends_[2];
};

TEST_F(ServerLogTest, WritesLinesOfItsLevelAndAboveBeforeItEnds) {
  {
    const ServerLog log(ends_[1], "info");
    spdlog::debug("not this");
    spdlog::warn("a warning of {}", 7);
  }
  EXPECT_THAT(ReadSome(), AllOf(HasSubstr("[normd] [warning] a warning of 7\n"),
                                ::testing::Not(HasSubstr("not this"))));
}

TEST_F(ServerLogTest, WritesRequestLinesAsTheyAre) {
  ServerLog log(ends_[1], "off");
  log.WriteRequestLine("{\"a\": 1}");
  log.Flush();
  EXPECT_EQ(ReadSome(), "{\"a\": 1}\n");
}

TEST_F(ServerLogTest, AThreadThatLogsNeverWaitsForAFullPipe) {
  fcntl(ends_[1], F_SETFL, O_NONBLOCK);
  while (write(ends_[1], "#", 1) > 0) {
  }
  fcntl(ends_[1], F_SETFL, 0);
  ServerLog log(ends_[1], "info");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 10'000; ++i) {
        spdlog::info("line {}", i);
        log.WriteRequestLine("{}");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(log.lost_lines(), 0);
  std::string text;
  while (text.find("log lines were lost") == std::string::npos) text += ReadSome();
  EXPECT_THAT(text, HasSubstr("[normd] [warning] "));
}

}  // namespace
}  // namespace normd
