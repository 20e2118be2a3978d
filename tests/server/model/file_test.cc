#include "server/model/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "tests/server/model/files.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

class InputFileTest : public ::testing::Test {
 protected:
  testing::TempDir dir_;
};

TEST_F(InputFileTest, ReadsWhatWasWritten) {
  const auto file = InputFile::Open(dir_.Write("f", "0123456789"), 10);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name(), "f");
  EXPECT_EQ(file->size_bytes(), 10);
  std::array<std::byte, 4> out;
  ASSERT_TRUE(file->Read(6, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out[0], std::byte{'6'});
  EXPECT_EQ(out[3], std::byte{'9'});
  EXPECT_TRUE(file->Read(10, {}).ok());
}

TEST_F(InputFileTest, MovesItsDescriptor) {
  auto first = InputFile::Open(dir_.Write("a", "a"), 10);
  auto second = InputFile::Open(dir_.Write("b", "b"), 10);
  ASSERT_TRUE(first.ok() && second.ok());
  *first = *std::move(second);
  const InputFile moved = *std::move(first);
  std::array<std::byte, 1> out;
  ASSERT_TRUE(moved.Read(0, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out[0], std::byte{'b'});
}

TEST_F(InputFileTest, SaysThatAFileShrankMeanwhile) {
  const std::string path = dir_.Write("f", std::string(1000, 'x'));
  const auto file = InputFile::Open(path, 1000);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(truncate(path.c_str(), 10), 0);
  std::array<std::byte, 100> out;
  EXPECT_EQ(file->Read(0, absl::MakeSpan(out)),
            absl::InvalidArgumentError("f: ends at byte 10, although it was opened with 1000"));
}

TEST_F(InputFileTest, RefusesWhatIsNotARegularFile) {
  const std::string fifo = dir_.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, dir_.path(), std::string("/dev/zero")}) {
    const absl::Status status = InputFile::Open(path, 10).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a regular file")) << path;
  }
}

TEST_F(InputFileTest, RefusesALoopOfLinks) {
  const std::string link = dir_.path() + "/link";
  ASSERT_EQ(symlink(link.c_str(), link.c_str()), 0);
  EXPECT_FALSE(InputFile::Open(link, 10).ok());
}

TEST_F(InputFileTest, EscapesAHostileName) {
  EXPECT_EQ(InputFile::Open(dir_.path() + "/a\nb", 10).status(),
            absl::NotFoundError("a\\nb: no such file"));
}

}  // namespace
}  // namespace normd
