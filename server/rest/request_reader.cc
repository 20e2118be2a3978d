#include "server/rest/request_reader.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace normd {
namespace {

namespace http = boost::beast::http;
using FlatBuffer = boost::beast::flat_buffer;

// A longer number is larger than any body, and a second reader may take it for another.
constexpr std::size_t kMaxSizeDigits = 15;

constexpr std::size_t kBeastSlackBytes = 16;

bool IsVisible(char c) { return static_cast<unsigned char>(c) >= ' ' || c == '\t'; }

absl::string_view TextOf(const FlatBuffer& buffer) {
  return {static_cast<const char*>(buffer.data().data()), buffer.size()};
}

}  // namespace

RequestReader::RequestReader(std::size_t max_head_bytes) : max_head_bytes_(max_head_bytes) {
  // Beast's own limit lies beyond ours: what it makes of a head of just that many bytes depends on
  // how they come.
  parser_.header_limit(static_cast<std::uint32_t>(max_head_bytes + kBeastSlackBytes));
  // This version takes boost::none for a limit below any length.
  parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
}

RequestReader::Progress RequestReader::ReadHeadFrom(FlatBuffer& buffer, RestHead& head,
                                                    RestRefusal& refusal) {
  // Old clients end a body with empty lines that its length does not count. Source: RFC
  // 9112, 2.2.
  while (head_bytes_ == 0 && absl::StartsWith(TextOf(buffer), "\r\n")) buffer.consume(2);
  if (head_bytes_ == 0 && TextOf(buffer) == "\r") return Progress::kNeedsMore;
  boost::system::error_code error;
  const std::size_t parsed = parser_.put(buffer.data(), error);
  // It takes whole lines, with those folded into them.
  const absl::string_view lines = TextOf(buffer).substr(0, parsed);
  folded_ = folded_ || absl::StrContains(lines, "\r\n ") || absl::StrContains(lines, "\r\n\t");
  buffer.consume(parsed);
  head_bytes_ += parsed;
  const std::size_t bytes = head_bytes_ + (error == http::error::need_more ? buffer.size() : 0);
  if (bytes > max_head_bytes_ || error == http::error::header_limit) {
    refusal = {431, absl::StrCat("head: more than ", max_head_bytes_,
                                 " bytes, wanted at most that many (--max_metadata_bytes)")};
  } else if (error == http::error::need_more || (!error && !parser_.is_header_done())) {
    return Progress::kNeedsMore;
  } else if (error) {
    refusal = {400, absl::StrCat("head: ", error.message(), ", wanted a request of HTTP/1.1")};
  } else if (folded_) {
    refusal = {400, "head: a folded line, wanted each header in one line"};
  } else {
    refusal = ReadHead(parser_.get(), head);
  }
  return Progress::kDone;
}

RequestReader::Progress RequestReader::ReadChunksFrom(FlatBuffer& buffer, Sink sink) {
  Progress progress = Progress::kDone;
  while (next_ != Next::kNothing && progress == Progress::kDone) {
    progress = next_ == Next::kData ? ReadData(buffer, sink) : ReadLine(buffer);
  }
  return progress;
}

RequestReader::Progress RequestReader::ReadData(FlatBuffer& buffer, Sink sink) {
  const std::size_t bytes = std::min<std::uint64_t>(data_left_, buffer.size());
  if (bytes == 0) return Progress::kNeedsMore;
  sink({static_cast<const std::byte*>(buffer.data().data()), bytes});
  buffer.consume(bytes);
  wire_bytes_ += bytes;
  data_left_ -= bytes;
  if (data_left_ == 0) next_ = Next::kDataEnd;
  return Progress::kDone;
}

RequestReader::Progress RequestReader::ReadLine(FlatBuffer& buffer) {
  const absl::string_view text = TextOf(buffer);
  const std::size_t end = text.find("\r\n");
  const absl::string_view line = text.substr(0, end);
  if (line.size() > kMaxLineBytes || (next_ == Next::kDataEnd && !line.empty() && line != "\r")) {
    return Progress::kBad;
  }
  if (end == absl::string_view::npos) return Progress::kNeedsMore;
  if (!std::all_of(line.begin(), line.end(), [](char c) { return IsVisible(c); })) {
    return Progress::kBad;
  }
  Progress progress = Progress::kDone;
  if (next_ == Next::kSize) {
    progress = TakeSize(line);
  } else if (next_ == Next::kDataEnd) {
    next_ = Next::kSize;
  } else if (line.empty()) {
    next_ = Next::kNothing;
  } else {
    // Nothing in a trailer is used.
    trailer_bytes_ += line.size();
    if (trailer_bytes_ > kMaxLineBytes || !absl::StrContains(line, ':')) progress = Progress::kBad;
  }
  buffer.consume(end + 2);
  wire_bytes_ += end + 2;
  return progress;
}

// Source: RFC 9112, 7.1.
RequestReader::Progress RequestReader::TakeSize(absl::string_view line) {
  const absl::string_view digits = line.substr(0, line.find(';'));
  if (digits.size() > kMaxSizeDigits || !absl::SimpleHexAtoi(digits, &data_left_) ||
      !std::all_of(digits.begin(), digits.end(),
                   [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); })) {
    return Progress::kBad;
  }
  if (data_left_ > limit_ - body_bytes_) {
    body_bytes_ += data_left_;
    return Progress::kTooLarge;
  }
  body_bytes_ += data_left_;
  next_ = data_left_ == 0 ? Next::kTrailer : Next::kData;
  return Progress::kDone;
}

}  // namespace normd
