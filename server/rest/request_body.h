// The body of a request, in one piece.

#ifndef NORMD_SERVER_REST_REQUEST_BODY_H_
#define NORMD_SERVER_REST_REQUEST_BODY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/buffer.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"

namespace normd {

// Memory that grows, with room for a parser behind it (kJsonPadding). Not thread-safe.
class RequestBody {
 public:
  RequestBody() = default;
  // Empty, with memory for `bytes`: if they are many, a block of the pool while this lends about
  // `most_lent` bytes at most. May throw std::bad_alloc.
  RequestBody(std::size_t bytes, BufferPool& pool, std::int64_t most_lent);

  ConstBytes bytes() const { return {data(), size_}; }
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
  const std::byte* data() const { return block_.size() > 0 ? block_.data() : memory_.get(); }

  // One of these has the bytes.
  Buffer block_;
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_REQUEST_BODY_H_
