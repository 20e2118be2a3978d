#include "server/log/server_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
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

// The time in `text`, which is in the form that `before` and `after` stand around.
absl::Time TimeIn(const std::string& text, const std::string& before, const std::string& after) {
  const std::size_t begin = text.find(before) + before.size();
  absl::Time time;
  std::string error;
  EXPECT_TRUE(absl::ParseTime("%Y-%m-%dT%H:%M:%E*SZ", text.substr(begin, text.find(after) - begin),
                              absl::UTCTimeZone(), &time, &error))
      << text << error;
  return time;
}

TEST_F(ServerLogTest, WritesTheTimeInUtcWhateverTheLocalTimeIs) {
  setenv("TZ", "UTC-5:30", 1);
  tzset();
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    ServerLog log(ends_[1], "info", format);
    spdlog::info("now");
    log.Flush();
    const bool json = format == LogFormat::kJson;
    const absl::Time time =
        TimeIn(ReadSome(), json ? "{\"time\":\"" : "[",
               json ? "\",\"level\":\"info\",\"message\":\"now\"}\n" : "] [normd] [info] now\n");
    EXPECT_LT(absl::AbsDuration(absl::Now() - time), absl::Minutes(1));
  }
  unsetenv("TZ");
  tzset();
}

TEST_F(ServerLogTest, WritesOneJsonObjectALineWhateverTheMessageHolds) {
  ServerLog log(ends_[1], "info", LogFormat::kJson);
  const std::string hostile = "a \"quote\"\n[normd] {\x01 \xff\xc3";
  spdlog::error("{}", hostile);
  log.WriteRequestLine("{\"a\": 1}");
  log.Flush();
  const std::vector<std::string> lines = absl::StrSplit(ReadSome(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  const nlohmann::json line = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(line["level"], "error");
  EXPECT_EQ(line["message"], "a \"quote\"\n[normd] {\x01 \ufffd\ufffd");
  EXPECT_EQ(lines[1], "{\"a\": 1}");
}

TEST_F(ServerLogTest, GoesOnInANewFileOnceTheOldOneWasMovedAway) {
  const std::string path = ::testing::TempDir() + "/normd_log_" + std::to_string(getpid());
  const std::string moved = path + ".1";
  const auto content = [](const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(name).rdbuf();
    return text.str();
  };
  absl::StatusOr<Descriptor> file = OpenLogFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  {
    ServerLog log(file->Release(), "info");
    spdlog::info("before");
    log.Flush();
    ASSERT_EQ(rename(path.c_str(), moved.c_str()), 0);
    spdlog::info("still there");
    log.Flush();
    log.Reopen(path);
    spdlog::info("after");
    log.Flush();
    log.Reopen("/nonexistent/log");
  }
  EXPECT_THAT(content(moved), AllOf(HasSubstr("before\n"), HasSubstr("still there\n")));
  EXPECT_THAT(content(path), AllOf(HasSubstr("after\n"),
                                   HasSubstr("[error] the log goes on where it was: --log_file: "
                                             "\"/nonexistent/log\": No such file")));
  EXPECT_THAT(content(path), ::testing::Not(HasSubstr("still there")));
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & S_IRWXO, 0u);
  unlink(path.c_str());
  unlink(moved.c_str());
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
