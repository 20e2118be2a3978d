#include "server/identity/private_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/server/identity/identity_files.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& path, Guarded guarded = Guarded::kFromReaders) {
  const auto file = ReadPrivateFile(path, guarded);
  return file.ok() ? "none" : std::string(file.status().message());
}

TEST(PrivateFileTest, ReadsAllOfAFileAlsoBehindALink) {
  const IdentityFolder folder;
  const std::string text("a\0b\n", 4);
  const std::string path = folder.Write("file", text);
  std::filesystem::create_symlink("file", folder.Path("link"));
  for (const std::string& name : {path, folder.Path("link")}) {
    const auto file = ReadPrivateFile(name, Guarded::kFromReaders);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->text, text);
    EXPECT_TRUE(file->young);
    EXPECT_EQ(*VersionOfFile(name), file->version);
  }
  EXPECT_EQ(ReadPrivateFile(folder.Write("empty", ""), Guarded::kFromReaders)->text, "");
}

TEST(PrivateFileTest, AnyModeThatEverybodyCanUseIsRefused) {
  const IdentityFolder folder;
  for (mode_t mode = 0; mode <= 0777; ++mode) {
    const std::string path = folder.Write("file", "x", mode | 0400);
    const bool read_by_all = (mode & 04) != 0;
    const bool written_by_all = (mode & 02) != 0;
    EXPECT_EQ(ErrorOf(path, Guarded::kFromReaders) == "none", !read_by_all && !written_by_all)
        << std::oct << mode;
    EXPECT_EQ(ErrorOf(path, Guarded::kFromWriters) == "none", !written_by_all) << std::oct << mode;
  }
  EXPECT_THAT(ErrorOf(folder.Write("file", "x", 0644)),
              HasSubstr("file: mode 0644 lets every user of the machine read it, wanted 0640"));
}

TEST(PrivateFileTest, RefusesWhatIsNoRegularFileAndWaitsForNone) {
  const IdentityFolder folder;
  EXPECT_THAT(ErrorOf(folder.Path("missing")), HasSubstr("missing"));
  EXPECT_THAT(ErrorOf(folder.Path("")), HasSubstr("wanted a regular file"));
  ASSERT_EQ(mkfifo(folder.Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(folder.Path("fifo")), HasSubstr("wanted a regular file"));
  EXPECT_THAT(ErrorOf("/dev/zero"), HasSubstr("wanted a regular file"));
  std::filesystem::create_symlink("loop", folder.Path("loop"));
  EXPECT_NE(ErrorOf(folder.Path("loop")), "none");
}

TEST(PrivateFileTest, RefusesMoreThanFourMebibytes) {
  const IdentityFolder folder;
  EXPECT_EQ(ErrorOf(folder.Write("file", std::string(4 << 20, 'x'))), "none");
  EXPECT_THAT(ErrorOf(folder.Write("file", std::string((4 << 20) + 1, 'x'))),
              HasSubstr("4194305 bytes, wanted at most 4194304"));
}

TEST(PrivateFileTest, AFileInAnothersPlaceHasAnotherVersion) {
  const IdentityFolder folder;
  const std::string path = folder.Write("file", "one");
  const FileState before = *VersionOfFile(path);
  folder.Write("file", "two");
  EXPECT_FALSE(*VersionOfFile(path) == before);
}

}  // namespace
}  // namespace normd::testing
