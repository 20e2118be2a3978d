#include "server/regions/named_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tests/server/regions/shared_file.h"
#include "tests/support/temp_folder.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

// A folder in the place of /dev/shm.
class NamedFileTest : public ::testing::Test {
 protected:
  NamedFileTest() {
    std::filesystem::create_directory(folder_);
    Write(root_.File("outside"));
    Write(folder_ + "/inside");
  }

  static void Write(const std::string& path) { std::ofstream(path) << "bytes"; }
  absl::Status Open(absl::string_view key, absl::string_view prefix = "") const {
    return OpenNamedFile(folder_, key, prefix).status();
  }
  void ExpectNone(absl::string_view key, absl::string_view prefix = "") const {
    const absl::Status status = Open(key, prefix);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << key << ": " << status;
  }

  const testing::TempFolder root_;
  const std::string folder_ = root_.File("shm");
};

TEST_F(NamedFileTest, OpensAPlainFileWithAndWithoutASlash) {
  for (const char* key : {"inside", "/inside"}) {
    const auto file = OpenNamedFile(folder_, key, "");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->writable);
  }
}

TEST_F(NamedFileTest, NamesWithSlashesDotsAndNulAreNoNames) {
  const absl::string_view keys[] = {"",
                                    "/",
                                    ".",
                                    "..",
                                    "/..",
                                    "../outside",
                                    "/../outside",
                                    "//inside",
                                    "a/b",
                                    "./inside",
                                    "inside/",
                                    absl::string_view("inside\0", 7),
                                    absl::string_view("/\0", 2),
                                    absl::string_view("inside\0/../../outside", 21)};
  for (const absl::string_view key : keys) {
    const absl::Status status = Open(key);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("key: ")) << key;
  }
  EXPECT_EQ(Open(std::string(256, 'x')).code(), absl::StatusCode::kInvalidArgument);
  ExpectNone(std::string(255, 'x'));
  ExpectNone("...");
}

TEST_F(NamedFileTest, LinksAreNotFollowed) {
  std::filesystem::create_symlink("inside", folder_ + "/link");
  std::filesystem::create_symlink("../outside", folder_ + "/way_out");
  ExpectNone("link");
  ExpectNone("/way_out");
}

// It would wait for a writer for ever.
TEST_F(NamedFileTest, FifosSocketsAndFoldersAreNoFiles) {
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  std::filesystem::create_directory(folder_ + "/folder");
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  absl::SNPrintF(address.sun_path, sizeof(address.sun_path), "%s/s", folder_);
  ASSERT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(socket_fd);
  ExpectNone("fifo");
  ExpectNone("folder");
  ExpectNone("s");
}

TEST_F(NamedFileTest, OnlyNamesWithThePrefixAreThere) {
  Write(folder_ + "/normd_a");
  EXPECT_TRUE(Open("/normd_a", "normd_").ok());
  EXPECT_TRUE(Open("normd_a", "normd_").ok());
  ExpectNone("inside", "normd_");
  ExpectNone("/normd", "normd_");
  // What is not there and what may not be opened sound alike.
  const auto text = [&](absl::string_view key) {
    return absl::StrReplaceAll(Open(key, "normd_").message(), {{key, "KEY"}});
  };
  EXPECT_EQ(text("inside"), text("nobody"));
}

TEST_F(NamedFileTest, AFileThatMayOnlyBeReadIsOpenedForReading) {
  for (const char* path : {"/..", "", "/inside"}) {
    ASSERT_EQ(chmod((folder_ + path).c_str(), 0555), 0);
  }
  {
    const testing::AsNobody nobody;
    const auto file = OpenNamedFile(folder_, "inside", "");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE(file->writable);
  }
  ASSERT_EQ(chmod((folder_ + "/inside").c_str(), 0), 0);
  {
    const testing::AsNobody nobody;
    ExpectNone("inside");
  }
  ASSERT_EQ(chmod((folder_ + "/..").c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
}

}  // namespace
}  // namespace normd
