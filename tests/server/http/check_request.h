// What holds for every request that the HTTP server takes.

#ifndef NORMD_TESTS_SERVER_HTTP_CHECK_REQUEST_H_
#define NORMD_TESTS_SERVER_HTTP_CHECK_REQUEST_H_

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace normd::testing {

// Aborts unless `request` is what `sent` asks for; for fuzzers.
void CheckRequest(const HttpRequest& request, absl::string_view sent);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_HTTP_CHECK_REQUEST_H_
