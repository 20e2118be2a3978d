// A file of a test's own, as a client would make it.

#ifndef NORMD_TESTS_SERVER_REGIONS_SHARED_FILE_H_
#define NORMD_TESTS_SERVER_REGIONS_SHARED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/descriptor.h"

namespace normd::testing {

inline constexpr std::int64_t kPage = 4096;

// A POSIX shared memory object of `bytes`, mapped whole; gone with this.
class SharedFile {
 public:
  explicit SharedFile(std::size_t bytes);
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  const std::string& key() const { return key_; }  // "/normd_test_4711_1"
  int descriptor() const { return file_.get(); }
  std::byte* data() const { return data_; }
  template <typename T>
  T* As(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(data_ + offset);
  }
  void Resize(std::size_t bytes);

 private:
  const std::string key_;
  const Descriptor file_;
  const std::size_t bytes_;
  std::byte* data_ = nullptr;
};

// While it lives, the process may no more than any user: root would open every file. Nothing, for
// who is not root. Of all threads.
class AsNobody {
 public:
  AsNobody();
  ~AsNobody();
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  const unsigned user_;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_REGIONS_SHARED_FILE_H_
