// Memory whose owner is told when it is no longer needed.

#ifndef NORMD_BASE_BUFFER_H_
#define NORMD_BASE_BUFFER_H_

#include <cstddef>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace normd {

// Sole owner of `size` bytes. The destructor, on any thread, calls the release function, which must
// not throw and must not block. Move-only.
class Buffer {
 public:
  using Release = absl::AnyInvocable<void() &&>;

  Buffer() = default;
  Buffer(std::byte* data, std::size_t size, Release release)
      : data_(data), size_(size), release_(std::move(release)) {}
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    Swap(taken);
    return *this;
  }
  ~Buffer() {
    if (release_) std::move(release_)();
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void Swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(release_, other.release_);
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Release release_;
};

}  // namespace normd

#endif  // NORMD_BASE_BUFFER_H_
