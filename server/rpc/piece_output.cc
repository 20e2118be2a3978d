#include "server/rpc/piece_output.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/grpc_slices.h"

namespace normd {

absl::StatusOr<PieceOutput> PieceOutput::Create(const Geometry& piece, OutputBuffers buffers,
                                                const PlacedOutputs& wanted) {
  if (buffers.size() != piece.outputs.size()) {
    return absl::InternalError(
        absl::StrCat("outputs: ", buffers.size(), ", wanted ", piece.outputs.size()));
  }
  OutputBuffers sent;
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    const std::size_t size = buffers[k].size();
    if (static_cast<std::int64_t>(size) != piece.outputs[k].bytes) {
      return absl::InternalError(
          absl::StrCat("output ", k, ": ", size, " bytes, wanted ", piece.outputs[k].bytes));
    }
    if (!wanted.Has(k)) continue;
    bytes += piece.outputs[k].bytes;
    sent.push_back(std::move(buffers[k]));
  }
  return PieceOutput(piece.samples, std::move(sent), bytes);
}

grpc::Slice PieceOutput::Next(std::int64_t size) {
  const auto count = static_cast<std::size_t>(size);
  if (buffers_->size() == 1) {
    const ConstBytes bytes(buffers_->front().data() + taken_bytes_, count);
    taken_bytes_ += size;
    // The last slice takes this object's own reference along.
    return SliceHolding(bytes, taken_bytes_ == bytes_ ? std::move(buffers_) : buffers_);
  }
  auto copy = std::make_unique<std::byte[]>(count);
  CopyNext(copy.get(), size);
  taken_bytes_ += size;
  const ConstBytes bytes(copy.get(), count);
  return SliceHolding(bytes, std::move(copy));
}

void PieceOutput::CopyNext(std::byte* to, std::int64_t size) {
  while (size > 0) {
    const Buffer& buffer = (*buffers_)[output_];
    const std::int64_t sample_bytes = static_cast<std::int64_t>(buffer.size()) / samples_;
    const std::int64_t part = std::min(size, sample_bytes - offset_);
    to = std::copy_n(buffer.data() + sample_ * sample_bytes + offset_, part, to);
    size -= part;
    offset_ += part;
    if (offset_ < sample_bytes) continue;
    offset_ = 0;
    output_ = (output_ + 1) % buffers_->size();
    if (output_ == 0) ++sample_;
  }
}

}  // namespace normd
