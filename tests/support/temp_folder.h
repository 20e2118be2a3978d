// A folder for a test.

#ifndef NORMD_TESTS_SUPPORT_TEMP_FOLDER_H_
#define NORMD_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace normd::testing {

// A new folder that goes, with all in it, at the end.
class TempFolder {
 public:
  TempFolder() {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const { return absl::StrCat(path_, "/", name); }
  // Writes a file and the folders above it; returns its path.
  std::string Write(absl::string_view name, absl::string_view content) const {
    std::string path = File(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    // A new file: one that is truncated and written again is flushed to the disk by some file
    // systems.
    std::filesystem::remove(path);
    std::ofstream out(path, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out.good()) std::abort();
    return path;
  }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "normd_test_XXXXXX").string();
};

// The same for secrets: puts whole files in place by a rename, as a deployment does.
class SecretFolder : public TempFolder {
 public:
  SecretFolder() {}  // Not defaulted: clang++ 14 would refuse constant ones.
  std::string Write(absl::string_view name, absl::string_view content, mode_t mode = 0600) const {
    const std::string fresh = TempFolder::Write(absl::StrCat(name, ".new"), content);
    if (chmod(fresh.c_str(), mode) != 0) std::abort();
    std::filesystem::rename(fresh, File(name));
    return File(name);
  }
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SUPPORT_TEMP_FOLDER_H_
