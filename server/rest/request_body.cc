#include "server/rest/request_body.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "wire/infer_json_request.h"

namespace normd {

void RequestBody::Reserve(std::size_t bytes) {
  if (bytes <= capacity_ && memory_ != nullptr) return;
  // The C library moves large blocks without copying them.
  auto* const grown = static_cast<std::byte*>(std::realloc(memory_.get(), bytes + kJsonPadding));
  if (grown == nullptr) throw std::bad_alloc();
  (void)memory_.release();
  memory_.reset(grown);
  capacity_ = bytes;
}

MutableBytes RequestBody::Room(std::size_t bytes) {
  if (size_ + bytes > capacity_) Reserve(std::max(size_ + bytes, 2 * capacity_));
  return {memory_.get() + size_, bytes};
}

void RequestBody::Append(ConstBytes bytes) {
  if (bytes.empty()) return;
  std::memcpy(Room(bytes.size()).data(), bytes.data(), bytes.size());
  Commit(bytes.size());
}

}  // namespace normd
