#include "server/rpc/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/grpc_slices.h"

namespace normd {
namespace {

// The size of gRPC's own receive buffers.
constexpr std::int64_t kSliceBytes = std::int64_t{64} << 10;

// zlib's largest window, and 16 more for gzip's header and trailer.
int WindowBits(Encoding encoding) { return encoding == Encoding::kGzip ? 15 + 16 : 15; }

class Inflater {
 public:
  Inflater(Encoding encoding, const InflateLimits& limits, std::vector<grpc::Slice>& inflated)
      : name_(encoding == Encoding::kGzip ? "gzip" : "deflate"),
        limits_(limits),
        inflated_(inflated) {
    if (inflateInit2(&stream_, WindowBits(encoding)) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Inflates this part.
  absl::Status Add(ConstBytes part) {
    // zlib reads through a pointer to what may change.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(part.data()));
    stream_.avail_in = static_cast<uInt>(part.size());
    do {
      if (stream_.avail_out == 0 && !ended_) {
        if (absl::Status status = BeginSlice(); !status.ok()) return status;
      }
      if (ended_) return stream_.avail_in == 0 ? absl::OkStatus() : NotThat("bytes behind its end");
      const int result = inflate(&stream_, Z_NO_FLUSH);
      ended_ = result == Z_STREAM_END;
      // Z_BUF_ERROR: there is nothing to inflate until more comes.
      if (!ended_ && result != Z_OK && result != Z_BUF_ERROR) {
        return NotThat(stream_.msg != nullptr ? stream_.msg : "a dictionary");
      }
      if (bytes() > limits_.max_bytes) {
        return absl::InvalidArgumentError(absl::StrCat("request: more than ", limits_.max_bytes,
                                                       " bytes when inflated, wanted at most ",
                                                       limits_.max_bytes));
      }
      // A full slice may leave something inside zlib.
    } while (stream_.avail_in > 0 || (stream_.avail_out == 0 && !ended_));
    return absl::OkStatus();
  }

  absl::Status End() {
    if (!ended_) return NotThat("no end");
    EndSlice();
    return absl::OkStatus();
  }

 private:
  std::int64_t bytes() const { return whole_bytes_ + slice_bytes_ - stream_.avail_out; }

  absl::Status NotThat(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "request: ", what, " in the compressed message, wanted ", name_, " (grpc-encoding)"));
  }

  // With room for one byte more than allowed, so that an excess shows.
  absl::Status BeginSlice() {
    EndSlice();
    const std::int64_t size = std::min(kSliceBytes, limits_.max_bytes + 1 - whole_bytes_);
    if (absl::Status status = limits_.take(size); !status.ok()) return status;
    slice_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(size));
    slice_bytes_ = size;
    stream_.next_out = reinterpret_cast<Bytef*>(slice_.get());
    stream_.avail_out = static_cast<uInt>(size);
    return absl::OkStatus();
  }

  void EndSlice() {
    const std::int64_t size = slice_bytes_ - stream_.avail_out;
    whole_bytes_ += size;
    slice_bytes_ = 0;
    stream_.avail_out = 0;
    if (size == 0) return;
    const ConstBytes written(slice_.get(), static_cast<std::size_t>(size));
    inflated_.push_back(SliceHolding(written, std::move(slice_)));
  }

  const absl::string_view name_;
  const InflateLimits& limits_;
  std::vector<grpc::Slice>& inflated_;
  z_stream stream_{};
  bool ended_ = false;
  std::unique_ptr<std::byte[]> slice_;  // Being written to.
  std::int64_t slice_bytes_ = 0;
  std::int64_t whole_bytes_ = 0;  // Bytes in the earlier slices.
};

}  // namespace

absl::Status Inflate(Encoding encoding, absl::Span<const ConstBytes> compressed,
                     const InflateLimits& limits, std::vector<grpc::Slice>& inflated) {
  Inflater inflater(encoding, limits, inflated);
  for (const ConstBytes part : compressed) {
    if (absl::Status status = inflater.Add(part); !status.ok()) return status;
  }
  return inflater.End();
}

}  // namespace normd
