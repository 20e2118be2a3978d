// Blocks of host memory for tensors, kept for reuse: fresh memory costs a page fault for every page
// at its first write, which takes longer than the kernels do for the same bytes.

#ifndef NORMD_BASE_BUFFER_POOL_H_
#define NORMD_BASE_BUFFER_POOL_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/buffer.h"

namespace normd {

// Blocks come in size classes, four to each power of two, so at most a fifth of a block is unused.
// A returned block is kept; when more than `max_free_bytes` are kept, the oldest go back to the
// system. Thread-safe. A Buffer may be destroyed on any thread, and after the pool.
class BufferPool {
 public:
  explicit BufferPool(std::int64_t max_free_bytes);
  // Returns kept blocks to the system at once, and lent ones when their Buffers end.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // `size` bytes of unspecified content, aligned to 64 bytes, to a huge page from 4 MiB on.
  // ResourceExhausted when the system has no such block. size <= 0 gives an empty Buffer.
  absl::StatusOr<Buffer> Take(std::int64_t size);

  // Returns kept blocks to the system that were not lent since the last call.
  void Trim();

  // In whole blocks, lent and kept. They take no lock.
  std::int64_t used_bytes() const;
  std::int64_t free_bytes() const;

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // shared: with every block in use.
};

}  // namespace normd

#endif  // NORMD_BASE_BUFFER_POOL_H_
