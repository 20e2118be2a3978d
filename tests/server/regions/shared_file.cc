#include "tests/server/regions/shared_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"

namespace normd::testing {
namespace {

std::string NewKey() {
  static std::atomic<int> count{0};
  return absl::StrCat("/normd_test_", getpid(), "_", ++count);
}

}  // namespace

SharedFile::SharedFile(std::size_t bytes)
    : key_(NewKey()),
      file_(shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)),
      bytes_(bytes) {
  EXPECT_TRUE(file_.valid());
  Resize(bytes);
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  EXPECT_NE(at, MAP_FAILED);
  data_ = static_cast<std::byte*>(at);
}

SharedFile::~SharedFile() {
  munmap(data_, bytes_);
  shm_unlink(key_.c_str());
}

void SharedFile::Resize(std::size_t bytes) {
  EXPECT_EQ(ftruncate(file_.get(), static_cast<off_t>(bytes)), 0);
}

AsNobody::AsNobody() : user_(geteuid()) {
  constexpr uid_t kNobody = 65534;
  if (user_ != 0) return;
  EXPECT_EQ(seteuid(kNobody), 0);
}

AsNobody::~AsNobody() {
  if (user_ != 0) return;
  EXPECT_EQ(seteuid(user_), 0);
}

}  // namespace normd::testing
