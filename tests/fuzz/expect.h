// What fuzzers share: what they say when a promise is broken, scripts, and files.

#ifndef NORMD_TESTS_FUZZ_EXPECT_H_
#define NORMD_TESTS_FUZZ_EXPECT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace normd::testing {

// Aborts, after a line with `promise` and `what_came`, unless it holds.
void Expect(bool holds, absl::string_view promise, absl::string_view what_came = "");

// A message that may go to a client and into a line of a log: not empty, at most `max_bytes`, on
// one line and of printable ASCII.
void ExpectMessage(absl::string_view message, std::size_t max_bytes);

// The input's bytes, from the front; zeros after its end.
class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size)
      : left_(reinterpret_cast<const char*>(data), size) {}

  explicit Script(absl::string_view text) : left_(text) {}

  std::uint8_t Byte();
  int Word();  // Two bytes, the low one first.
  // The next `size`, or as many as are left.
  absl::string_view Bytes(std::size_t size);
  // Up to the next byte `end`, which goes too; without one, all that is left.
  absl::string_view Until(char end);
  absl::string_view Rest() const { return left_; }

 private:
  absl::string_view left_;
};

// A file without a place in a file system, for what reads descriptors; its owner's alone to read
// and write. Aborts where the system refuses it something.
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

#endif  // NORMD_TESTS_FUZZ_EXPECT_H_
