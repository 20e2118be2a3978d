// Messages as gRPC holds them: slices with an owner each, read and sent where they lie.

#ifndef NORMD_WIRE_GRPC_SLICES_H_
#define NORMD_WIRE_GRPC_SLICES_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "wire/tensor_message.h"

namespace normd {

inline ConstBytes BytesOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const std::byte*>(slice.begin()), slice.size()};
}

// Views of the slices, in order. A short slice holds its bytes inside itself, so the views live as
// long as the slices stay where they are.
absl::InlinedVector<ConstBytes, 8> ViewsOf(absl::Span<const grpc::Slice> slices);

// A slice of `bytes`, which gRPC only reads. It drops `owner`, which keeps them alive, when the
// last reference goes, on any thread. That may be after the call: a socket's buffer can outlive a
// call that met its deadline.
template <typename Owner>
grpc::Slice SliceHolding(ConstBytes bytes, Owner owner) {
  auto held = std::make_unique<Owner>(std::move(owner));
  grpc::Slice slice(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void* ended) { delete static_cast<Owner*>(ended); }, held.get());
  (void)held.release();  // The slice owns it from here on.
  return slice;
}

// The whole message: each part of `message`, followed by the slice with that tensor's data.
// Requires one slice per tensor; empty ones are left out.
grpc::ByteBuffer Assemble(const EncodedMessage& message, absl::Span<const grpc::Slice> data);

}  // namespace normd

#endif  // NORMD_WIRE_GRPC_SLICES_H_
