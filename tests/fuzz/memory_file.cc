#include "tests/fuzz/memory_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {

MemoryFile::MemoryFile() : descriptor_(memfd_create("fuzzed", MFD_CLOEXEC)) {
  Expect(descriptor_ >= 0 && fchmod(descriptor_, 0600) == 0, "there is a file");
}

MemoryFile::~MemoryFile() { close(descriptor_); }

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

void MemoryFile::Write(absl::string_view content) const {
  const bool written =
      ftruncate(descriptor_, 0) == 0 && pwrite(descriptor_, content.data(), content.size(), 0) ==
                                            static_cast<ssize_t>(content.size());
  Expect(written, "the file is written");
}

}  // namespace normd::testing
