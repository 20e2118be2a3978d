#include "server/http/request_head.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace normd {
namespace {

namespace http = boost::beast::http;

// The bytes read at once; some may lie beyond the head.
constexpr std::size_t kReadBytes = 4096;

std::optional<std::string> Authorization(const http::fields& fields) {
  const auto [first, last] = fields.equal_range(http::field::authorization);
  if (first == last) return std::nullopt;
  if (std::next(first) != last) return "";
  return std::string(first->value().data(), first->value().size());
}

}  // namespace

RequestHead::RequestHead(std::size_t max_bytes)
    : max_bytes_(max_bytes), buffer_(max_bytes + kReadBytes) {
  parser_.header_limit(static_cast<std::uint32_t>(max_bytes));
}

boost::asio::mutable_buffer RequestHead::room() {
  return buffer_.prepare(std::min(kReadBytes, buffer_.max_size() - buffer_.size()));
}

std::optional<RequestHead::Outcome> RequestHead::Take(std::size_t bytes) {
  buffer_.commit(bytes);
  boost::system::error_code error;
  const std::size_t parsed = parser_.put(buffer_.data(), error);
  buffer_.consume(parsed);
  parsed_ += parsed;
  if (error == http::error::need_more && buffer_.size() < buffer_.max_size()) return std::nullopt;
  // The parser applies no limit to a head that comes at once.
  if (!error && parsed_ > max_bytes_) error = http::error::header_limit;
  if (error) return Refuse(error);
  if (!parser_.is_header_done()) return std::nullopt;
  return Accept();
}

RequestHead::Outcome RequestHead::End() {
  boost::system::error_code error;
  if (parser_.got_some()) parser_.put_eof(error);
  return error ? Refuse(error) : Outcome();
}

RequestHead::Outcome RequestHead::Refuse(const boost::system::error_code& error) {
  Outcome outcome;
  if (error == http::error::header_limit || error == http::error::need_more) {
    outcome.refusal = 431;
  } else if (error != http::error::partial_message) {
    outcome.refusal = 400;
  }
  return outcome;
}

RequestHead::Outcome RequestHead::Accept() const {
  Outcome outcome;
  const auto& request = parser_.get();
  outcome.head_only = request.method() == http::verb::head;
  if (!outcome.head_only && request.method() != http::verb::get) {
    outcome.refusal = 405;
    return outcome;
  }
  const std::string target(request.target().data(), request.target().size());
  const auto encoding = request[http::field::accept_encoding];
  HttpRequest& read = outcome.request.emplace();
  read.path = target.substr(0, target.find('?'));
  read.accepts_gzip =
      absl::StrContains(absl::string_view(encoding.data(), encoding.size()), "gzip");
  read.authorization = Authorization(request);
  return outcome;
}

}  // namespace normd
