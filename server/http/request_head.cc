#include "server/http/request_head.h"

#include <cstdint>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace normd {
namespace {

namespace http = boost::beast::http;

// What is read at once, beyond the head.
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

RequestHead::Outcome RequestHead::Read(boost::system::error_code error, std::size_t bytes) const {
  Outcome outcome;
  // Beast holds a head that comes at once to no limit but the buffer's.
  if (error == http::error::header_limit || error == http::error::buffer_overflow ||
      (!error && bytes > max_bytes_)) {
    outcome.refusal = 431;
    return outcome;
  }
  if (error) {
    const bool is_syntax =
        error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message;
    if (is_syntax) outcome.refusal = 400;
    return outcome;
  }
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
