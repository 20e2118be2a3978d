// Memory with inaccessible pages next to it: a stray read or write, such as a vector beyond a
// tensor's end, ends the program at once. One thread makes and drops such memory.

#ifndef NORMD_TESTS_SUPPORT_FENCED_MEMORY_H_
#define NORMD_TESTS_SUPPORT_FENCED_MEMORY_H_

#include <cstddef>
#include <deque>

namespace normd::norm::testing {

// `bytes` bytes with any values; the first follows an inaccessible page, or the last precedes one.
class FencedMemory {
 public:
  enum class Fence { kBefore, kBehind };

  FencedMemory(std::size_t bytes, Fence fence);
  ~FencedMemory();
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  unsigned char* data() { return data_; }

 private:
  std::size_t inside_;    // Accessible bytes, whole pages.
  unsigned char* pages_;  // The first of them.
  unsigned char* data_;
};

// Fenced copies of memory. One run of memory is copied once, so that x and y of an in-place segment
// stay in place.
class FencedMirror {
 public:
  explicit FencedMirror(FencedMemory::Fence fence) : fence_(fence) {}

  // The address of the copy of `bytes` bytes at `original`; null stays null.
  void* Copy(const void* original, std::size_t bytes);

 private:
  struct Run {
    Run(const void* from, std::size_t count, FencedMemory::Fence fence)
        : original(from), bytes(count), memory(count, fence) {}

    const void* original;
    std::size_t bytes;
    FencedMemory memory;
  };

  FencedMemory::Fence fence_;
  std::deque<Run> runs_;
};

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_FENCED_MEMORY_H_
