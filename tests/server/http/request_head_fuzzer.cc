// The head of a request to the metrics port, as it comes in one part and in two; the first byte of
// the input says where these meet.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "server/http/request_head.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {
namespace {

constexpr std::size_t kMaxHeadBytes = 512;

// What holds for every request that is taken: it is what `sent` asks for.
void CheckRequest(const HttpRequest& request, absl::string_view sent) {
  Expect(absl::StrContains(sent, request.path), "a path is as it came", request.path);
  Expect(std::none_of(request.path.begin(), request.path.end(),
                      [](char c) { return c == '?' || c == ' ' || c == '\r' || c == '\n'; }),
         "a path is without its query and the rest of the line", request.path);
  Expect(absl::StartsWith(sent, "GET ") || absl::StartsWith(sent, "HEAD "),
         "other methods are refused", sent);
  if (request.authorization.has_value()) {
    Expect(absl::StrContains(absl::AsciiStrToLower(sent), "authorization"), "as it came");
    Expect(absl::StrContains(sent, *request.authorization) || absl::StrContains(sent, "\n ") ||
               absl::StrContains(sent, "\n\t"),
           "an authorization is as it came", *request.authorization);
  }
  if (request.accepts_gzip) Expect(absl::StrContains(sent, "gzip"), "as it came");
}

RequestHead::Outcome Read(absl::string_view first, absl::string_view second) {
  RequestHead head(kMaxHeadBytes);
  for (absl::string_view part : {first, second}) {
    while (!part.empty()) {
      const std::size_t taken =
          boost::asio::buffer_copy(head.room(), boost::asio::buffer(part.data(), part.size()));
      Expect(taken > 0, "there is room while the head is not whole", part);
      part.remove_prefix(taken);
      if (auto outcome = head.Take(taken)) return *std::move(outcome);
    }
  }
  return head.End();
}

void Try(absl::string_view bytes, std::size_t meet) {
  const RequestHead::Outcome outcome = Read(bytes, {});
  Expect(outcome.refusal == 0 || !outcome.request.has_value(), "either", bytes);
  static constexpr int kRefusals[] = {0, 400, 405, 431};
  Expect(std::count(std::begin(kRefusals), std::end(kRefusals), outcome.refusal) == 1,
         "a refusal that clients are told of", absl::StrCat(outcome.refusal));
  if (outcome.request.has_value()) {
    CheckRequest(*outcome.request, bytes);
    Expect(bytes.find("\r\n\r\n") + 4 <= kMaxHeadBytes, "no longer than it may be", bytes);
    Expect(outcome.head_only == absl::StartsWith(bytes, "HEAD "), "HEAD is HEAD", bytes);
  }
  const RequestHead::Outcome cut = Read(bytes.substr(0, meet), bytes.substr(meet));
  Expect(
      cut.request.has_value() == outcome.request.has_value() && cut.head_only == outcome.head_only,
      "it matters not how the bytes come", bytes);
  if (!cut.request.has_value()) return;
  Expect(cut.request->path == outcome.request->path &&
             cut.request->accepts_gzip == outcome.request->accepts_gzip &&
             cut.request->authorization == outcome.request->authorization,
         "it matters not how the bytes come", bytes);
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  normd::testing::Script script(data, size);
  const std::size_t meet = std::size_t{script.Byte()} * 2;
  normd::testing::Try(script.Rest(), std::min(meet, script.Rest().size()));
  return 0;
}
