// Whole requests over HTTP, held against a second reader, which knows only the grammar: what one of
// them could take for another request or for another end of it would be smuggled. The input: a byte
// that says how the rest is cut, and the bytes of a connection.

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/rest/request_reader.h"
#include "server/rest/routes.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {
namespace {

constexpr std::size_t kMaxHeadBytes = 512;
constexpr std::uint64_t kMaxBodyBytes = 300;

struct Message {
  std::string verb;
  std::string target;
  std::uint64_t length = 0;  // A body's that does not come in chunks.
  bool chunked = false;
  bool has_body = false;  // The chunks are complete.
  std::string body;
  std::size_t end = 0;  // Where what follows begins: the body of a length, or the next request.

  bool operator==(const Message&) const = default;
};

bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
  });
}

std::optional<std::uint64_t> NumberOf(absl::string_view digits, unsigned base) {
  std::uint64_t number = 0;
  if (digits.empty()) return std::nullopt;
  for (const char c : digits) {
    const absl::string_view all = "0123456789abcdef";
    const std::size_t digit =
        all.substr(0, base).find(absl::ascii_tolower(static_cast<unsigned char>(c)));
    if (digit == absl::string_view::npos || number > (~std::uint64_t{0} - digit) / base) {
      return std::nullopt;
    }
    number = number * base + digit;
  }
  return number;
}

// Nullopt for lines that are not whole, and for a head that the grammar has not.
std::optional<Message> ReadByGrammar(absl::string_view bytes) {
  std::size_t skipped = 0;
  while (absl::StartsWith(bytes.substr(skipped), "\r\n")) skipped += 2;
  const absl::string_view text = bytes.substr(skipped);
  const std::size_t end = text.find("\r\n\r\n");
  if (end == absl::string_view::npos) return std::nullopt;
  Message message;
  message.end = skipped + end + 4;
  const std::vector<absl::string_view> lines = absl::StrSplit(text.substr(0, end), "\r\n");
  for (const absl::string_view line : lines) {
    if (line.find_first_of("\r\n") != absl::string_view::npos) return std::nullopt;
  }
  const std::vector<absl::string_view> start = absl::StrSplit(lines[0], ' ');
  if (start.size() != 3 || !IsToken(start[0]) || start[1].empty() ||
      (start[2] != "HTTP/1.1" && start[2] != "HTTP/1.0")) {
    return std::nullopt;
  }
  message.verb = std::string(start[0]);
  message.target = std::string(start[1]);
  int lengths = 0;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::size_t colon = lines[i].find(':');
    if (colon == absl::string_view::npos || !IsToken(lines[i].substr(0, colon)))
      return std::nullopt;
    const std::string name = absl::AsciiStrToLower(lines[i].substr(0, colon));
    const absl::string_view value = absl::StripAsciiWhitespace(lines[i].substr(colon + 1));
    if (name == "content-length") {
      const auto length = NumberOf(value, 10);
      if (!length.has_value() || ++lengths > 1) return std::nullopt;
      message.length = *length;
    } else if (name == "transfer-encoding") {
      if (!absl::EqualsIgnoreCase(value, "chunked") || ++lengths > 1) return std::nullopt;
      message.chunked = true;
    }
  }
  if (!message.chunked) return message;
  for (std::size_t at = message.end;;) {
    const std::size_t line_end = bytes.find("\r\n", at);
    if (line_end == absl::string_view::npos) return message;
    const absl::string_view line = bytes.substr(at, line_end - at);
    const auto size = NumberOf(line.substr(0, line.find(';')), 16);
    if (!size.has_value()) return message;
    at = line_end + 2;
    if (*size == 0) {
      // The trailer's lines up to an empty one.
      for (std::size_t next = 0; (next = bytes.find("\r\n", at)) != absl::string_view::npos;
           at = next + 2) {
        if (next > at) continue;
        message.has_body = true;
        message.end = at + 2;
        return message;
      }
      return message;
    }
    if (bytes.size() - at < *size || bytes.substr(at + *size, 2) != "\r\n") return message;
    absl::StrAppend(&message.body, bytes.substr(at, *size));
    at += *size + 2;
  }
}

struct Outcome {
  RestRefusal refusal;
  std::optional<Message> message;  // For a head that is taken.
  bool bad_body = false;
};

Outcome ReadByServer(absl::string_view bytes, std::size_t step) {
  Outcome outcome;
  RequestReader reader(kMaxHeadBytes);
  reader.Limit(kMaxBodyBytes);
  RestHead head;
  boost::beast::flat_buffer buffer;
  std::size_t passed = 0;
  std::string body;
  const auto sink = [&body](ConstBytes part) {
    body.append(reinterpret_cast<const char*>(part.data()), part.size());
  };
  while (passed < bytes.size()) {
    const absl::string_view part = bytes.substr(passed, step);
    passed += part.size();
    std::memcpy(buffer.prepare(part.size()).data(), part.data(), part.size());
    buffer.commit(part.size());
    if (!outcome.message.has_value()) {
      if (reader.ReadHeadFrom(buffer, head, outcome.refusal) == RequestReader::Progress::kNeedsMore)
        continue;
      if (outcome.refusal.status != 0) return outcome;
      outcome.message = Message{
          head.verb, head.target, head.content_length.value_or(0), head.chunked, false, "", 0};
    }
    outcome.message->end = passed - buffer.size();
    if (!head.chunked) return outcome;
    const RequestReader::Progress progress = reader.ReadChunksFrom(buffer, sink);
    outcome.bad_body =
        progress == RequestReader::Progress::kBad || progress == RequestReader::Progress::kTooLarge;
    if (progress == RequestReader::Progress::kNeedsMore) continue;
    outcome.message->body = body;
    outcome.message->has_body = progress == RequestReader::Progress::kDone;
    outcome.message->end = passed - buffer.size();
    return outcome;
  }
  return outcome;
}

void CheckRoute(const Message& message) {
  Route route;
  const RestRefusal refusal = FindRoute(message.verb, message.target, route);
  static constexpr int kStatuses[] = {0, 204, 400, 404, 405};
  Expect(std::count(std::begin(kStatuses), std::end(kStatuses), refusal.status) == 1,
         "a target has a route or a status", absl::StrCat(refusal.status));
  if (!refusal.why.empty()) ExpectMessage(refusal.why, 1000);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Script script(data, size);
  const std::size_t step = 1 + script.Byte() % 40;
  const absl::string_view bytes = script.Rest();
  const Outcome outcome = ReadByServer(bytes, std::max<std::size_t>(bytes.size(), 1));
  const Outcome cut = ReadByServer(bytes, step);
  // One that is not whole may be refused early.
  const bool waits = cut.refusal.status == 0 && !cut.message.has_value();
  Expect(waits || ((outcome.refusal.status != 0) == (cut.refusal.status != 0) &&
                   outcome.message.has_value() == cut.message.has_value()),
         "it matters not how the bytes come", bytes);
  Expect(!waits || !outcome.message.has_value(), "a whole head is not waited for", bytes);
  if (outcome.refusal.status != 0) {
    ExpectMessage(outcome.refusal.why, 1000);
    return 0;
  }
  if (!outcome.message.has_value()) return 0;
  CheckRoute(*outcome.message);
  const std::optional<Message> other = ReadByGrammar(bytes);
  Expect(other.has_value(), "what is taken is in the grammar", bytes);
  const Message& taken = *outcome.message;
  Expect(taken.verb == other->verb && taken.target == other->target &&
             taken.length == other->length && taken.chunked == other->chunked,
         "both readers see the same head", bytes);
  if (taken.chunked && !taken.has_body) {
    // Beyond the limit, or in lines that are too long.
    return 0;
  }
  Expect(cut.bad_body || *cut.message == taken, "it matters not how the bytes come", bytes);
  Expect(taken == *other, "both readers see the same body, and the same end", bytes);
  return 0;
}

}  // namespace normd::testing
