#include "tests/fuzz/expect.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"

namespace normd::testing {

void Expect(bool holds, absl::string_view promise, absl::string_view what_came) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s: %s\n", std::string(promise).c_str(),
               absl::CHexEscape(what_came).c_str());
  std::abort();
}

void ExpectMessage(absl::string_view message, std::size_t max_bytes) {
  Expect(!message.empty(), "a refusal says why");
  Expect(message.size() <= max_bytes, "a message is short", message);
  Expect(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c < 127; }),
         "a message is one line of printable ASCII", message);
}

std::uint8_t Script::Byte() {
  if (left_.empty()) return 0;
  const auto byte = static_cast<std::uint8_t>(left_.front());
  left_.remove_prefix(1);
  return byte;
}

absl::string_view Script::Until(char end) {
  const std::size_t at = std::min(left_.find(end), left_.size());
  const absl::string_view part = left_.substr(0, at);
  left_.remove_prefix(std::min(at + 1, left_.size()));
  return part;
}

}  // namespace normd::testing
