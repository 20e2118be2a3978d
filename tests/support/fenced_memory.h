// Memory that ends where the process may touch nothing more: a stray read or write, of a vector
// beyond a tensor's end for one, ends the program on the spot.

#ifndef NORMD_TESTS_SUPPORT_FENCED_MEMORY_H_
#define NORMD_TESTS_SUPPORT_FENCED_MEMORY_H_

#include <cstddef>
#include <deque>

namespace normd::norm::testing {

// `bytes` bytes of which the first follows a page that must not be touched, or the last precedes
// one.
class FencedMemory {
 public:
  enum class Fence { kBefore, kBehind };

  FencedMemory(std::size_t bytes, Fence fence);
  ~FencedMemory();
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  unsigned char* data() { return data_; }

 private:
  std::size_t mapped_;
  unsigned char* pages_;
  unsigned char* data_;
};

// Fenced copies of memory. One run of memory is copied once, so that x and y of a segment in place
// are one there too.
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
