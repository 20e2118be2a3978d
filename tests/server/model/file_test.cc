#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "server/model/root_folder.h"
#include "tests/server/model/files.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr auto kAborted = absl::StatusCode::kAborted;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

class InputFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<InputFile> Open(const std::string& path, std::int64_t max_bytes = 1 << 20) {
    const absl::StatusOr<RootFolder> root = RootFolder::Open(dir_.path());
    return root.ok() ? root->OpenFile(path, max_bytes) : root.status();
  }
  // As `cp` over it: the same file, truncated and written again.
  void Overwrite(const std::string& path, const std::string& content) {
    std::ofstream(dir_.path() + "/" + path, std::ios::binary | std::ios::trunc) << content;
  }
  testing::TempFolder dir_;
};

TEST_F(InputFileTest, ReadsWhatWasWritten) {
  dir_.Write("f", "0123456789");
  auto file = Open("f", 10);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name(), "f");
  EXPECT_EQ(file->size_bytes(), 10);
  std::array<std::byte, 4> out;
  ASSERT_TRUE(file->Read(6, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out[0], std::byte{'6'});
  EXPECT_EQ(out[3], std::byte{'9'});
  EXPECT_TRUE(file->Read(10, {}).ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());
}

TEST_F(InputFileTest, MovesItsDescriptor) {
  dir_.Write("a", "a");
  dir_.Write("b", "b");
  auto first = Open("a");
  auto second = Open("b");
  ASSERT_TRUE(first.ok() && second.ok());
  *first = *std::move(second);
  InputFile moved = *std::move(first);
  std::array<std::byte, 1> out;
  ASSERT_TRUE(moved.Read(0, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out[0], std::byte{'b'});
}

TEST_F(InputFileTest, SaysThatAFileShrankMeanwhile) {
  const std::string path = dir_.Write("f", std::string(1000, 'x'));
  auto file = Open("f", 1000);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(truncate(path.c_str(), 10), 0);
  std::array<std::byte, 100> out;
  EXPECT_EQ(file->Read(0, absl::MakeSpan(out)),
            absl::InvalidArgumentError("f: ends at byte 10, although it was opened with 1000"));
  EXPECT_EQ(file->CheckUnchanged().code(), kAborted);
}

// Straight after the file was made, so that all of it may fall into one tick of the clock.
TEST_F(InputFileTest, NoticesEveryKindOfChange) {
  const auto change = [this](const std::string& how) {
    const std::string path = dir_.path() + "/f";
    if (how == "same size") Overwrite("f", std::string(1000, 'y'));
    if (how == "longer") Overwrite("f", std::string(1001, 'x'));
    if (how == "one byte") {
      std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(500).put('y');
    }
    if (how == "touched") std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    if (how == "times set back") {
      const auto before = std::filesystem::last_write_time(path);
      Overwrite("f", std::string(1000, 'y'));
      std::filesystem::last_write_time(path, before);
    }
  };
  for (const char* how : {"same size", "longer", "one byte", "touched", "times set back"}) {
    for (int i = 0; i < 20; ++i) {
      dir_.Write("f", std::string(1000, 'x'));
      auto file = Open("f");
      ASSERT_TRUE(file.ok()) << file.status();
      std::array<std::byte, 1000> out;
      ASSERT_TRUE(file->Read(0, absl::MakeSpan(out)).ok());
      change(how);
      const absl::Status status = file->CheckUnchanged();
      // A file system without fine times may hide what changed no byte.
      if (std::string(how) != "touched") {
        ASSERT_EQ(status.code(), kAborted) << how;
      }
    }
  }
}

TEST_F(InputFileTest, AFileThatIsLeftAloneIsUnchanged) {
  dir_.Write("f", std::string(3 << 20, 'x'));
  auto file = Open("f", 4 << 20);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::byte> out(3 << 20);
  ASSERT_TRUE(file->Read(0, absl::MakeSpan(out)).ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());
}

TEST(TimestampTickTest, IsTwoSecondsWhereWholeSecondsAreKept) {
  FileState state;
  state.ctime_ns = 1'700'000'000'000'000'000;
  EXPECT_EQ(TimestampTickNs(state), 2'000'000'000);
  ++state.ctime_ns;
  EXPECT_EQ(TimestampTickNs(state), 10'000'000);
}

class RootFolderTest : public InputFileTest {
 protected:
  void Link(const std::string& target, const std::string& name) {
    ASSERT_EQ(symlink(target.c_str(), (dir_.path() + "/" + name).c_str()), 0) << name;
  }
  absl::StatusCode CodeOf(const std::string& path) { return Open(path).status().code(); }
  RootFolder Root() { return *RootFolder::Open(dir_.path()); }
};

TEST_F(RootFolderTest, RefusesWhatIsNotARegularFileWithoutOpeningIt) {
  ASSERT_EQ(mkfifo((dir_.path() + "/fifo").c_str(), 0600), 0);
  dir_.Write("folder/f", "x");
  for (const char* path : {"fifo", "folder", ".", "folder/.."}) {
    const absl::Status status = Open(path).status();
    EXPECT_EQ(status.code(), kInvalid) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a regular file")) << path;
  }
}

TEST_F(RootFolderTest, FollowsLinksThatStayInside) {
  dir_.Write("..2026_11_22/config", "c");
  dir_.Write("folder/deep/f", "f");
  Link("..2026_11_22", "..data");
  Link("..data/config", "config");
  Link("../folder/deep", "folder/up_and_down");  // Out of `folder`, not of the root.
  Link("folder", "other");
  Link("deep/../deep/f", "folder/back");
  for (const char* path : {"config", "..data/config", "other/deep/f", "folder/up_and_down/f",
                           "other/up_and_down/f", "folder/back", "other/./deep//f"}) {
    EXPECT_TRUE(Open(path).ok()) << path << ": " << Open(path).status();
  }
  EXPECT_TRUE(Root().CheckFolder("other").ok());
  EXPECT_THAT(*Root().ListFolders(""),
              UnorderedElementsAre("..2026_11_22", "..data", "folder", "other"));
}

TEST_F(RootFolderTest, FollowsNoLinkOut) {
  const testing::TempFolder outside;
  outside.Write("secret", "s");
  outside.Write("folder/secret", "s");
  dir_.Write("folder/f", "f");
  const std::string root = dir_.path().substr(dir_.path().rfind('/') + 1);
  const std::string out = outside.path().substr(outside.path().rfind('/') + 1);
  Link(outside.path() + "/secret", "absolute");
  Link("../" + out + "/secret", "relative");
  Link("../" + root + "/folder/f", "out_and_in_again");
  Link(dir_.path() + "/folder/f", "absolute_inside");
  Link("folder/../../" + out + "/secret", "crooked");
  Link("..", "parent");
  Link("/", "slash");
  Link("relative", "twice");
  Link(outside.path() + "/folder", "folder_out");
  Link("../../" + out + "/folder", "folder/out");
  Link("/proc/self/root/etc/passwd", "magic");
  Link("/dev/zero", "device");
  for (const char* path : {"absolute", "relative", "out_and_in_again", "absolute_inside", "crooked",
                           "parent", "slash", "twice", "folder_out/secret", "folder/out/secret",
                           "magic", "device", "..", "../x", "folder/../../x", "parent/x"}) {
    const absl::Status status = Open(path).status();
    EXPECT_EQ(status.code(), kInvalid) << path << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("leads out of the model repository"))
        << path;
    EXPECT_FALSE(Root().StateOf(path).ok()) << path;
  }
  EXPECT_EQ(Root().CheckFolder("folder_out").code(), kInvalid);
  EXPECT_FALSE(Root().ListFolders("folder_out").ok());
  EXPECT_FALSE(Root().ListFolders("parent").ok());
}

TEST_F(RootFolderTest, TheRootItselfMayBeALink) {
  dir_.Write("models/f", "f");
  Link(dir_.path() + "/models", "link");
  const auto root = RootFolder::Open(dir_.path() + "/link");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_TRUE(root->OpenFile("f", 10).ok());
}

TEST_F(RootFolderTest, EndsOnLoopsOfLinksAndDeepPaths) {
  Link("loop", "loop");
  Link("b", "a");
  Link("a", "b");
  Link("c/c/c", "c");
  std::string deep;
  for (int i = 0; i < 80; ++i) deep += "d/";
  dir_.Write(deep + "f", "f");
  for (const std::string& path : {std::string("loop"), std::string("a"), std::string("c"),
                                  deep + "f", std::string("loop/x")}) {
    EXPECT_FALSE(Open(path).ok()) << path;
  }
}

TEST_F(RootFolderTest, TellsWhatIsMissing) {
  dir_.Write("f", "f");
  Link("nowhere", "dangling");
  EXPECT_EQ(CodeOf("none"), kNotFound);
  EXPECT_EQ(CodeOf("none/f"), kNotFound);
  EXPECT_EQ(CodeOf("dangling"), kNotFound);
  EXPECT_FALSE(Open("f/g").ok());
  EXPECT_EQ(Root().CheckFolder("f").code(), kNotFound);
  EXPECT_EQ(RootFolder::Open(dir_.path() + "/none").status().code(), kNotFound);
  EXPECT_EQ(RootFolder::Open(dir_.path() + "/f").status().code(), kNotFound);
  EXPECT_EQ(Open("a\nb").status(), absl::NotFoundError("a\\nb: no such file"));
}

TEST_F(RootFolderTest, RefusesAFileOverTheLimit) {
  dir_.Write("f", "0123456789");
  EXPECT_EQ(Open("f", 9).status(), absl::FailedPreconditionError("f: 10 bytes, wanted at most 9"));
}

}  // namespace
}  // namespace normd
