// Reads one request from a connection's bytes: its head, and chunks.

#ifndef NORMD_SERVER_REST_REQUEST_READER_H_
#define NORMD_SERVER_REST_REQUEST_READER_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/empty_body.hpp"
#include "boost/beast/http/parser.hpp"
#include "server/rest/rest_head.h"

namespace normd {

// The longest line between chunks, with its extensions, and the longest trailer.
inline constexpr std::size_t kMaxLineBytes = 4096;

// Beast's parser for heads, with what it lacks: their limit, and ReadHead's checks. The parser of
// chunks is our own: that of Boost 1.74 fails an assertion when a last chunk comes in parts.
// Knows no socket. Takes from the buffer what it has understood, and nothing behind the request.
class RequestReader {
 public:
  enum class Progress { kNeedsMore, kDone, kTooLarge, kBad };
  using Sink = absl::FunctionRef<void(ConstBytes)>;

  explicit RequestReader(std::size_t max_head_bytes);

  // kNeedsMore, or kDone with a head or a refusal, after which nothing more can be read.
  Progress ReadHeadFrom(boost::beast::flat_buffer& buffer, RestHead& head, RestRefusal& refusal);

  // The bytes that a body may have.
  void Limit(std::uint64_t bytes) { limit_ = bytes; }
  std::uint64_t limit() const { return limit_; }
  // Passes what has come of a chunked body to `sink`.
  Progress ReadChunksFrom(boost::beast::flat_buffer& buffer, Sink sink);
  // Counts bytes of a body with a length.
  void Count(std::uint64_t bytes) { wire_bytes_ += bytes; }

  // The body's bytes: as sent, and without the lines of chunks.
  std::uint64_t wire_bytes() const { return wire_bytes_; }
  std::uint64_t body_bytes() const { return body_bytes_; }

 private:
  Progress ReadData(boost::beast::flat_buffer& buffer, Sink sink);
  Progress ReadLine(boost::beast::flat_buffer& buffer);
  Progress TakeSize(absl::string_view line);

  const std::size_t max_head_bytes_;
  std::size_t head_bytes_ = 0;  // Parsed so far.
  bool folded_ = false;         // A header has several lines.
  std::uint64_t limit_ = 0;
  std::uint64_t wire_bytes_ = 0;
  std::uint64_t body_bytes_ = 0;
  enum class Next { kSize, kData, kDataEnd, kTrailer, kNothing };
  Next next_ = Next::kSize;      // In a chunked body.
  std::uint64_t data_left_ = 0;  // In kData: the chunk's.
  std::size_t trailer_bytes_ = 0;
  boost::beast::http::request_parser<boost::beast::http::empty_body> parser_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_REQUEST_READER_H_
