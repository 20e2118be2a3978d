#include "tests/server/http/check_request.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {

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

}  // namespace normd::testing
