// The slices of a message as protobuf's input.

#ifndef NORMD_WIRE_SLICE_STREAM_H_
#define NORMD_WIRE_SLICE_STREAM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/bytes.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace normd {

// The concatenation of the slices, read where they lie; borrows them. Skips empty slices: the coded
// stream takes an empty buffer for a slow source and asks again, which a message of many empty
// slices could exploit. Not thread-safe.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit SliceStream(absl::Span<const ConstBytes> slices) : slices_(slices) {}

  bool Next(const void** data, int* size) override {
    while (next_ < slices_.size() && offset_ == slices_[next_].size()) {
      ++next_;
      offset_ = 0;
    }
    if (next_ == slices_.size()) return false;
    *data = slices_[next_].data() + offset_;
    *size = static_cast<int>(slices_[next_].size() - offset_);
    offset_ = slices_[next_].size();
    count_ += *size;
    return true;
  }
  void BackUp(int count) override {
    offset_ -= static_cast<std::size_t>(count);
    count_ -= count;
  }
  bool Skip(int count) override {
    const void* data = nullptr;
    int size = 0;
    while (count > 0 && Next(&data, &size)) {
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return count == 0;
  }
  std::int64_t ByteCount() const override { return count_; }

 private:
  const absl::Span<const ConstBytes> slices_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace normd

#endif  // NORMD_WIRE_SLICE_STREAM_H_
