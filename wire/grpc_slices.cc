#include "wire/grpc_slices.h"

#include "absl/strings/string_view.h"

namespace normd {

absl::InlinedVector<ConstBytes, 8> ViewsOf(absl::Span<const grpc::Slice> slices) {
  absl::InlinedVector<ConstBytes, 8> views;
  for (const grpc::Slice& slice : slices) views.push_back(BytesOf(slice));
  return views;
}

grpc::ByteBuffer Assemble(const EncodedMessage& message, absl::Span<const grpc::Slice> data) {
  absl::InlinedVector<grpc::Slice, 8> slices;
  if (message.ends.empty()) slices.emplace_back(message.bytes.data(), message.bytes.size());
  for (std::size_t i = 0; i < message.ends.size(); ++i) {
    const absl::string_view part = message.Part(i);
    slices.emplace_back(part.data(), part.size());
    if (data[i].size() > 0) slices.push_back(data[i]);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace normd
