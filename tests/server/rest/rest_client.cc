#include "tests/server/rest/rest_client.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace normd::testing {

bool RestClient::Fill() {
  const std::string more = peer_.ReadSome();
  received_ += more;
  return !more.empty();
}

RestAnswer RestClient::Read(bool head_only) {
  RestAnswer answer;
  std::size_t end = 0;
  while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill()) return answer;
  }
  const std::string head = received_.substr(0, end);
  received_.erase(0, end + 4);
  std::size_t length = 0;
  for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (answer.status == 0) {
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(9, 3), &answer.status)) << head;
      continue;
    }
    const std::string name = absl::AsciiStrToLower(field.first);
    EXPECT_TRUE(answer.headers.emplace(name, field.second).second) << head;
    if (name == "content-length") {
      EXPECT_TRUE(absl::SimpleAtoi(field.second, &length)) << head;
    }
  }
  if (answer.status == 100) return answer;
  if (head_only) length = 0;
  while (received_.size() < length) {
    if (!Fill()) return RestAnswer();
  }
  answer.body = received_.substr(0, length);
  received_.erase(0, length);
  return answer;
}

RestAnswer RestClient::Get(const std::string& path, const std::string& headers) {
  return Call(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: h\r\n", headers, "\r\n"));
}

RestAnswer RestClient::Post(const std::string& path, const std::string& body,
                            const std::string& headers) {
  return Call(PostText(path, body, headers));
}

std::string PostText(const std::string& path, const std::string& body, const std::string& headers) {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: h\r\n", headers,
                      "Content-Length: ", body.size(), "\r\n\r\n", body);
}

std::string ChunkedText(const std::string& path, const std::string& body, std::size_t step,
                        const std::string& headers) {
  std::string text = absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: h\r\n", headers,
                                  "Transfer-Encoding: chunked\r\n\r\n");
  for (std::size_t at = 0; at < body.size(); at += step) {
    const std::string part = body.substr(at, step);
    absl::StrAppend(&text, absl::Hex(part.size()), "\r\n", part, "\r\n");
  }
  return text + "0\r\n\r\n";
}

}  // namespace normd::testing
