// Reads a request's bytes in order, across its slices.

#ifndef NORMD_SERVER_EXEC_SLICE_READER_H_
#define NORMD_SERVER_EXEC_SLICE_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/types/span.h"
#include "server/batching/request.h"

namespace normd {

// Borrows the slices. Not thread-safe.
class SliceReader {
 public:
  explicit SliceReader(absl::Span<const ConstBytes> slices) : slices_(slices) {}

  // Copies the next `bytes`; the slices have at least that many left.
  void Read(std::byte* target, std::size_t bytes) {
    while (bytes > 0) {
      const ConstBytes slice = slices_.front();
      const std::size_t part = std::min(bytes, slice.size() - offset_);
      if (part > 0) std::memcpy(target, slice.data() + offset_, part);
      target += part;
      bytes -= part;
      offset_ += part;
      if (offset_ == slice.size()) {
        slices_.remove_prefix(1);
        offset_ = 0;
      }
    }
  }

  // The rest of the next slice; empty at the end.
  ConstBytes Piece() {
    while (!slices_.empty() && offset_ == slices_.front().size()) {
      slices_.remove_prefix(1);
      offset_ = 0;
    }
    return slices_.empty() ? ConstBytes() : slices_.front().subspan(offset_);
  }
  // Skips `bytes` of Piece().
  void Skip(std::size_t bytes) { offset_ += bytes; }

 private:
  absl::Span<const ConstBytes> slices_;
  std::size_t offset_ = 0;  // Into the first of them.
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_SLICE_READER_H_
