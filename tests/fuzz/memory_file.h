// A file without a place in a file system, for what reads descriptors.

#ifndef NORMD_TESTS_FUZZ_MEMORY_FILE_H_
#define NORMD_TESTS_FUZZ_MEMORY_FILE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace normd::testing {

// Its owner's alone to read and write. Aborts where the system refuses it something.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  // By which this process can open it.
  std::string path() const;
  void Write(absl::string_view content) const;  // In place of what it held.

 private:
  const int descriptor_;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_FUZZ_MEMORY_FILE_H_
