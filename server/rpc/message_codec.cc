#include "server/rpc/message_codec.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace normd {
namespace {

void Destroy(void* buffer) { delete static_cast<Buffer*>(buffer); }

}  // namespace

grpc::Slice OwningSlice(Buffer buffer) {
  auto owner = std::make_unique<Buffer>(std::move(buffer));
  void* data = owner->data();
  const std::size_t size = owner->size();
  grpc::Slice slice(data, size, Destroy, owner.get());
  (void)owner.release();  // The slice's from here on.
  return slice;
}

}  // namespace normd
