#include "server/log/server_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/log/line_writer.h"
#include "spdlog/spdlog.h"
#include "tests/support/threads.h"

namespace normd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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
  RunThreads(4, [&log](int) {
    for (int i = 0; i < 10'000; ++i) {
      spdlog::info("line {}", i);
      log.WriteRequestLine("{}");
    }
  });
  EXPECT_GT(log.lost_lines(), 0);
  std::string text;
  while (text.find("log lines were lost") == std::string::npos) text += ReadSome();
  EXPECT_THAT(text, HasSubstr("[normd] [warning] "));
}

constexpr Duration kLong = std::chrono::seconds(60);

// What takes lines, and its other end.
struct Ends {
  int write = -1;
  int read = -1;
};

// A writer may be stuck in its end after the test, so ends stay open.
Ends NewPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  return {ends[1], ends[0]};
}
Ends NewSocket() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  return {ends[1], ends[0]};
}
Ends NewTerminal() {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) std::abort();
  return {open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC), master};
}

// Until nothing can be written without waiting.
void Fill(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  while (write(fd, "#\n", 2) > 0) {
  }
  fcntl(fd, F_SETFL, flags);
}

// Reads lines until one equals `last`, and leaves out what Fill has written.
std::vector<std::string> ReadUntil(int fd, const std::string& last) {
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count <= 0) break;
    for (const char c : std::string(buffer, static_cast<std::size_t>(count))) {
      if (c != '\r' && c != '#') text += c;  // A terminal ends lines its own way.
    }
    if (text.find(last + "\n") != std::string::npos) break;
  }
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

LineWriterOptions Small() {
  LineWriterOptions options;
  options.max_bytes = 4096;
  options.linger = Duration(0);
  options.describe_lost = [](std::int64_t lost) { return absl::StrCat("lost ", lost, "\n"); };
  return options;
}

class LineWriterTest : public ::testing::TestWithParam<Ends (*)()> {};

TEST_P(LineWriterTest, WritesEveryLineInOrder) {
  const Ends ends = GetParam()();
  LineWriter writer(ends.write, Small());
  writer.Write("a\n");
  writer.Write("b\n", LineWriter::Share::kHalf);
  writer.Write("c\n");
  EXPECT_THAT(ReadUntil(ends.read, "c"), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(writer.Flush(kLong));
  EXPECT_EQ(writer.lost(), 0);
}

TEST_P(LineWriterTest, NeverWaitsForAReaderAndTellsHowManyLinesWereLost) {
  const Ends ends = GetParam()();
  Fill(ends.write);
  constexpr int kLines = 20'000;
  LineWriter writer(ends.write, Small());
  for (int i = 0; i < kLines; ++i) writer.Write(absl::StrCat("line ", i, "\n"));
  EXPECT_FALSE(writer.Flush(Duration(0)));
  const std::int64_t lost = writer.lost();
  EXPECT_GT(lost, 0);

  // The reader comes back. Each line is read, or counted as lost, and those read are in order.
  std::thread late([&] {
    ASSERT_TRUE(writer.Flush(kLong));
    writer.Write("last\n");
  });
  const std::vector<std::string> lines = ReadUntil(ends.read, "last");
  late.join();
  std::int64_t read = 0;
  std::int64_t told = 0;
  int last = -1;
  for (absl::string_view line : lines) {
    int number = 0;
    if (absl::ConsumePrefix(&line, "line ")) {
      ASSERT_TRUE(absl::SimpleAtoi(line, &number));
      EXPECT_GT(number, last);
      last = number;
      ++read;
    } else if (absl::ConsumePrefix(&line, "lost ")) {
      ASSERT_TRUE(absl::SimpleAtoi(line, &number));
      told += number;
    }
  }
  EXPECT_EQ(told, lost);
  EXPECT_EQ(read + told, kLines);
}

TEST_P(LineWriterTest, IsDestroyedWhileItsThreadIsStuck) {
  const Ends ends = GetParam()();
  Fill(ends.write);
  LineWriter writer(ends.write, Small());
  writer.Write("a\n");
}

INSTANTIATE_TEST_SUITE_P(Descriptors, LineWriterTest,
                         ::testing::Values(NewPipe, NewSocket, NewTerminal), [](const auto& of) {
                           return of.param == NewPipe     ? "Pipe"
                                  : of.param == NewSocket ? "Socket"
                                                          : "Terminal";
                         });

TEST(LineWriterFaultsTest, LosesLinesThatNobodyCanReadAndDoesNotSpin) {
  signal(SIGPIPE, SIG_IGN);
  const Ends ends = NewPipe();
  close(ends.read);
  LineWriter writer(ends.write, Small());
  for (int i = 0; i < 3; ++i) writer.Write("a\n");
  EXPECT_TRUE(writer.Flush(kLong));
  EXPECT_EQ(writer.lost(), 3);  // A line that tells of them would be lost and counted too.
}

TEST(LineWriterFaultsTest, CountsLinesThatADeviceRefuses) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  LineWriter writer(full, Small());
  writer.Write("a\n");
  EXPECT_TRUE(writer.Flush(kLong));
  EXPECT_EQ(writer.lost(), 1);
}

TEST(LineWriterFaultsTest, BeginsALineOfItsOwnAfterOneThatWasCut) {
  signal(SIGXFSZ, SIG_IGN);
  const std::string path = ::testing::TempDir() + "/normd_cut_line";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  LineWriter writer(file, Small());
  for (const rlim_t room : {rlim_t{8}, before.rlim_max}) {
    const rlimit limit = {room, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (const char* line : {"first\n", "second\n", "third\n"}) writer.Write(line);
    EXPECT_TRUE(writer.Flush(kLong));
  }
  std::string text(100, '\0');
  text.resize(static_cast<std::size_t>(pread(file, text.data(), text.size(), 0)));
  EXPECT_EQ(text, "first\nse\nfirst\nlost 2\nsecond\nthird\n");
  close(file);
}

TEST(LineWriterFaultsTest, LosesNothingAtAPipeThatAnotherHasMadeNonBlocking) {
  const Ends ends = NewPipe();
  fcntl(ends.write, F_SETFL, O_NONBLOCK);
  LineWriterOptions options = Small();
  options.max_bytes = std::size_t{1} << 20;
  LineWriter writer(ends.write, std::move(options));
  const std::string line = std::string(99, 'x') + "\n";
  constexpr std::size_t kLines = 5000;  // Several times what the pipe holds.
  for (std::size_t i = 0; i < kLines; ++i) writer.Write(line);
  writer.Write("last\n");
  EXPECT_EQ(ReadUntil(ends.read, "last").size(), kLines + 1);
  EXPECT_EQ(writer.lost(), 0);
}

TEST(LineWriterFaultsTest, LinesOfLessImportanceLeaveHalfOfTheRoom) {
  const Ends ends = NewPipe();
  Fill(ends.write);
  LineWriter writer(ends.write, Small());
  const std::string line = std::string(63, 'x') + "\n";
  for (int i = 0; i < 1000; ++i) writer.Write(line, LineWriter::Share::kHalf);
  const std::int64_t lost = writer.lost();
  EXPECT_GT(lost, 0);
  for (int i = 0; i < 32; ++i) writer.Write(line);
  EXPECT_EQ(writer.lost(), lost);
}

TEST(LineWriterFaultsTest, ALineThatIsTooLongIsLostAlone) {
  const Ends ends = NewPipe();
  LineWriter writer(ends.write, Small());
  writer.Write(std::string(5000, 'x'));
  EXPECT_EQ(writer.lost(), 1);
  writer.Write("a\n");
  EXPECT_THAT(ReadUntil(ends.read, "a"), ::testing::Contains("a"));
}

TEST(LineWriterThreadsTest, EachLineOfManyThreadsIsReadOrLost) {
  const Ends ends = NewPipe();
  LineWriter writer(ends.write, Small());
  constexpr int kThreads = 4;
  constexpr int kLines = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&writer] {
      for (int i = 0; i < kLines; ++i) writer.Write("line\n");
    });
  }
  std::thread last([&] {
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(writer.Flush(kLong));
    writer.Write("last\n");
  });
  const std::vector<std::string> lines = ReadUntil(ends.read, "last");
  last.join();
  const auto read = std::count(lines.begin(), lines.end(), "line");
  EXPECT_EQ(read + writer.lost(), kThreads * kLines);
}

}  // namespace
}  // namespace normd
