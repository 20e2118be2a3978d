#include "tests/fuzz/expect.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace normd::testing {

void Expect(bool holds, absl::string_view promise, absl::string_view what_came) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s: %s\n", std::string(promise).c_str(),
               absl::CHexEscape(what_came).c_str());
  std::abort();
}

void ExpectMessage(absl::string_view message, std::size_t max_bytes) {
  Expect(!message.empty(), "a refusal says why");
  Expect(message.size() <= max_bytes, "a message is short", message);
  Expect(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c < 127; }),
         "a message is one line of printable ASCII", message);
}

std::uint8_t Script::Byte() {
  if (left_.empty()) return 0;
  const auto byte = static_cast<std::uint8_t>(left_.front());
  left_.remove_prefix(1);
  return byte;
}

int Script::Word() {
  const int low = Byte();
  return low | Byte() << 8;
}

absl::string_view Script::Bytes(std::size_t size) {
  const absl::string_view bytes = left_.substr(0, size);
  left_.remove_prefix(bytes.size());
  return bytes;
}

absl::string_view Script::Until(char end) {
  const std::size_t at = std::min(left_.find(end), left_.size());
  const absl::string_view part = left_.substr(0, at);
  left_.remove_prefix(std::min(at + 1, left_.size()));
  return part;
}

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
