// The body of a request, in one piece.

#ifndef NORMD_SERVER_REST_REQUEST_BODY_H_
#define NORMD_SERVER_REST_REQUEST_BODY_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/bytes.h"

namespace normd {

// Memory that grows, with room for a parser behind it (kJsonPadding). Not thread-safe.
class RequestBody {
 public:
  ConstBytes bytes() const { return {memory_.get(), size_}; }
  std::size_t size() const { return size_; }
  // Memory for `bytes` in all, at least. The system gives pages only where bytes are written. May
  // throw std::bad_alloc.
  void Reserve(std::size_t bytes);
  // The memory for this many more bytes, which Commit then adds. May throw std::bad_alloc.
  MutableBytes Room(std::size_t bytes);
  void Commit(std::size_t bytes) { size_ += bytes; }
  void Append(ConstBytes bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_REQUEST_BODY_H_
