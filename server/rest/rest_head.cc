#include "server/rest/rest_head.h"

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/printable.h"
#include "boost/beast/http/field.hpp"

namespace normd {
namespace {

namespace http = boost::beast::http;

constexpr std::size_t kMaxShown = 64;  // Bytes of a value that an error repeats.

RestRefusal Bad(absl::string_view header, absl::string_view got, absl::string_view wanted) {
  return {400, absl::StrCat(header, ": ", got, ", wanted ", wanted)};
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", Printable(text, kMaxShown), "\"");
}

template <typename Name>
std::string First(const BeastHead& parsed, Name name) {
  const auto value = parsed[name];
  return std::string(value.data(), value.size());
}

RestRefusal ReadLength(const BeastHead& parsed, RestHead& head) {
  const auto lengths = parsed.count(http::field::content_length);
  const auto encodings = parsed.count(http::field::transfer_encoding);
  if (lengths + encodings > 1) {
    return Bad(encodings > 0 ? "Transfer-Encoding" : "Content-Length", "several lengths", "one");
  }
  if (lengths == 1) {
    const std::string text = First(parsed, http::field::content_length);
    std::uint64_t bytes = 0;
    if (text.find_first_not_of("0123456789") != std::string::npos ||
        !absl::SimpleAtoi(text, &bytes)) {
      return Bad("Content-Length", Quoted(text), "a number of bytes");
    }
    head.content_length = bytes;
  }
  if (encodings == 1) {
    const std::string text = First(parsed, http::field::transfer_encoding);
    if (head.http_1_0 || !absl::EqualsIgnoreCase(text, "chunked")) {
      return Bad("Transfer-Encoding", Quoted(text), "chunked, in HTTP/1.1, or Content-Length");
    }
    head.chunked = true;
  }
  return {};
}

RestRefusal ReadConnection(const BeastHead& parsed, RestHead& head) {
  head.keep_alive = !head.http_1_0;
  const auto [first, last] = parsed.equal_range(http::field::connection);
  for (auto field = first; field != last; ++field) {
    const absl::string_view value(field->value().data(), field->value().size());
    for (const absl::string_view token : absl::StrSplit(value, ',')) {
      const absl::string_view option = absl::StripAsciiWhitespace(token);
      if (absl::EqualsIgnoreCase(option, "close")) head.keep_alive = false;
      if (absl::EqualsIgnoreCase(option, "keep-alive") && head.http_1_0) head.keep_alive = true;
    }
  }
  const std::string expect = First(parsed, http::field::expect);
  if (expect.empty()) return {};
  if (!absl::EqualsIgnoreCase(expect, "100-continue")) {
    return {417, absl::StrCat("Expect: ", Quoted(expect), ", wanted 100-continue")};
  }
  head.expects_continue = !head.http_1_0;
  return {};
}

}  // namespace

RestRefusal ReadHead(const BeastHead& parsed, RestHead& head) {
  head.verb = std::string(parsed.method_string().data(), parsed.method_string().size());
  head.target = std::string(parsed.target().data(), parsed.target().size());
  head.http_1_0 = parsed.version() == 10;
  const auto hosts = parsed.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && !head.http_1_0)) {
    return Bad("Host", absl::StrCat(hosts, " of them"), "one");
  }
  if (RestRefusal refusal = ReadLength(parsed, head); refusal.status != 0) return refusal;
  if (RestRefusal refusal = ReadConnection(parsed, head); refusal.status != 0) return refusal;
  const auto [first, last] = parsed.equal_range(http::field::authorization);
  if (first != last) {
    head.authorization =
        std::next(first) == last ? First(parsed, http::field::authorization) : std::string();
  }
  head.content_encoding = First(parsed, http::field::content_encoding);
  head.accept_encoding = First(parsed, http::field::accept_encoding);
  head.origin = First(parsed, http::field::origin);
  head.json_bytes = First(parsed, "Inference-Header-Content-Length");
  head.request_id = First(parsed, "x-request-id");
  head.traceparent = First(parsed, "traceparent");
  if (parsed.count("normd-in-use") > 0) head.in_use = First(parsed, "normd-in-use");
  return {};
}

absl::string_view AllowedOrigin(absl::string_view origin, absl::string_view allowed) {
  if (origin.empty() || allowed.empty()) return "";
  if (allowed == "*") return "*";
  for (const absl::string_view one : absl::StrSplit(allowed, ',')) {
    if (one == origin) return origin;
  }
  return "";
}

// Browsers send this header with what a page of another server asks for. Such a page must not reach
// a server of the machine that it is read on.
RestRefusal CheckOrigin(absl::string_view origin, absl::string_view allowed) {
  if (origin.empty() || !AllowedOrigin(origin, allowed).empty()) return {};
  return {403, absl::StrCat("Origin: \"", Printable(origin, 64),
                            "\", wanted none, or one of --http_allow_origin")};
}

}  // namespace normd
