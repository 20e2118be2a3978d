#include "server/rest/request_body.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "wire/infer_json_request.h"

namespace normd {
namespace {

// The C library returns free blocks of this size to the system, and each page of a fresh one costs
// a fault. It keeps shorter ones.
constexpr std::size_t kPooledBytes = std::size_t{64} << 10;

}  // namespace

RequestBody::RequestBody(std::size_t bytes, BufferPool& pool, std::int64_t most_lent) {
  const auto size = static_cast<std::int64_t>(bytes + kJsonPadding);
  // A used block has all its pages before the body comes, and the budgets count what has come.
  // Hence the bound.
  if (bytes >= kPooledBytes && size <= most_lent - pool.used_bytes()) {
    absl::StatusOr<Buffer> block = pool.Take(size);
    if (!block.ok()) throw std::bad_alloc();
    block_ = *std::move(block);
    capacity_ = bytes;
  } else {
    Reserve(bytes);
  }
}

void RequestBody::Reserve(std::size_t bytes) {
  if (bytes <= capacity_ && data() != nullptr) return;
  // The C library moves large blocks without copying them.
  auto* const grown = static_cast<std::byte*>(std::realloc(memory_.get(), bytes + kJsonPadding));
  if (grown == nullptr) throw std::bad_alloc();
  (void)memory_.release();
  memory_.reset(grown);
  if (block_.size() > 0) std::memcpy(grown, block_.data(), size_);
  block_ = Buffer();
  capacity_ = bytes;
}

MutableBytes RequestBody::Room(std::size_t bytes) {
  if (size_ + bytes > capacity_) Reserve(std::max(size_ + bytes, 2 * capacity_));
  return {(block_.size() > 0 ? block_.data() : memory_.get()) + size_, bytes};
}

void RequestBody::Append(ConstBytes bytes) {
  if (bytes.empty()) return;
  std::memcpy(Room(bytes.size()).data(), bytes.data(), bytes.size());
  Commit(bytes.size());
}

}  // namespace normd
