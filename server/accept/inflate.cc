#include "server/accept/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <new>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

// The size of gRPC's own receive buffers.
constexpr std::int64_t kRoomBytes = std::int64_t{64} << 10;

// zlib's largest window, and 16 more for gzip's header and trailer.
int WindowBits(Encoding encoding) { return encoding == Encoding::kGzip ? 15 + 16 : 15; }

class Inflater {
 public:
  Inflater(Encoding encoding, const InflateTarget& target)
      : name_(encoding == Encoding::kGzip ? "gzip" : "deflate"), target_(target) {
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
        if (absl::Status status = TakeRoom(); !status.ok()) return status;
      }
      if (ended_) return stream_.avail_in == 0 ? absl::OkStatus() : NotThat("bytes behind its end");
      const int result = inflate(&stream_, Z_NO_FLUSH);
      ended_ = result == Z_STREAM_END;
      // Z_BUF_ERROR: there is nothing to inflate until more comes.
      if (!ended_ && result != Z_OK && result != Z_BUF_ERROR) {
        return NotThat(stream_.msg != nullptr ? stream_.msg : "a dictionary");
      }
      if (bytes() > target_.max_bytes) {
        return absl::InvalidArgumentError(absl::StrCat("request: more than ", target_.max_bytes,
                                                       " bytes when inflated, wanted at most ",
                                                       target_.max_bytes));
      }
      // Full memory may leave something inside zlib.
    } while (stream_.avail_in > 0 || (stream_.avail_out == 0 && !ended_));
    return absl::OkStatus();
  }

  absl::StatusOr<std::int64_t> End() {
    if (!ended_) return NotThat("no end");
    return bytes();
  }

 private:
  std::int64_t bytes() const { return room_bytes_ - stream_.avail_out; }

  absl::Status NotThat(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("request: ", what,
                                                   " in the compressed message, wanted ", name_,
                                                   " (", target_.header, ")"));
  }

  // With room for one byte more than allowed, so that an excess shows.
  absl::Status TakeRoom() {
    const std::int64_t size = std::min(kRoomBytes, target_.max_bytes + 1 - room_bytes_);
    const absl::StatusOr<MutableBytes> room = target_.room(size);
    if (!room.ok()) return room.status();
    room_bytes_ += size;
    stream_.next_out = reinterpret_cast<Bytef*>(room->data());
    stream_.avail_out = static_cast<uInt>(size);
    return absl::OkStatus();
  }

  const absl::string_view name_;
  const InflateTarget& target_;
  z_stream stream_{};
  bool ended_ = false;
  std::int64_t room_bytes_ = 0;  // In all.
};

}  // namespace

absl::StatusOr<std::int64_t> Inflate(Encoding encoding, absl::Span<const ConstBytes> compressed,
                                     const InflateTarget& target) {
  Inflater inflater(encoding, target);
  for (const ConstBytes part : compressed) {
    if (absl::Status status = inflater.Add(part); !status.ok()) return status;
  }
  return inflater.End();
}

}  // namespace normd
