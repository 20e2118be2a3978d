#include "server/identity/tokens.h"

#include <openssl/crypto.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/identity/names.h"

namespace normd {
namespace {

constexpr std::size_t kHexDigits = 2 * std::tuple_size_v<Digest>;

// -1 for what is none.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<Digest> FromHex(absl::string_view hex) {
  if (hex.size() != kHexDigits) return std::nullopt;
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

absl::Status LineError(std::size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

// The first eight bytes.
std::uint64_t BeginningOf(const Digest& digest) {
  std::uint64_t beginning = 0;
  std::memcpy(&beginning, digest.data(), sizeof(beginning));
  return beginning;
}

// All ones when `a` and `b` are the same, else 0; no branch depends on them.
std::uint64_t SameMask(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t different = a ^ b;
  // The highest bit of x | -x is set for every x but 0.
  return ((different | (0 - different)) >> 63) - 1;
}

struct TokenLine {
  absl::string_view name;
  Digest digest;
};

absl::StatusOr<TokenLine> ParseLine(absl::string_view text, std::size_t number) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  constexpr absl::string_view kWanted = "wanted NAME sha256:HEX, as `normctl token NAME` prints it";
  if (words.size() != 2) {
    return LineError(number, absl::StrCat(words.size(), " words, ", kWanted));
  }
  if (absl::Status name = CheckIdentityName(words[0]); !name.ok()) {
    return LineError(number, absl::StrCat("the first word is no name, ", kWanted));
  }
  absl::string_view hex = words[1];
  const bool hashed = absl::ConsumePrefix(&hex, "sha256:");
  const std::optional<Digest> digest = hashed ? FromHex(hex) : std::nullopt;
  if (!digest.has_value()) {
    return LineError(number,
                     absl::StrCat("token \"", words[0], "\": the second word is not sha256: and ",
                                  kHexDigits, " hexadecimal digits"));
  }
  return TokenLine{words[0], *digest};
}

}  // namespace

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  absl::flat_hash_map<std::string, std::size_t> index;
  // By the digest's beginning: no two tokens have the same but by a chance of one in 2^64.
  absl::flat_hash_map<std::uint64_t, std::size_t> line_of;
  std::size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    if (table.size() == kMaxTokens) {
      return LineError(number, absl::StrCat("wanted at most ", kMaxTokens, " tokens"));
    }
    const absl::StatusOr<TokenLine> token = ParseLine(line, number);
    if (!token.ok()) return token.status();
    const std::uint64_t beginning = BeginningOf(token->digest);
    const auto [known, is_new] = line_of.emplace(beginning, number);
    if (!is_new) {
      return LineError(number, absl::StrCat("token \"", token->name, "\": the same as in line ",
                                            known->second, ", wanted each token once"));
    }
    const auto name = index.emplace(token->name, table.names_.size()).first;
    if (name->second == table.names_.size()) table.names_.emplace_back(token->name);
    table.digests_.push_back(token->digest);
    table.beginnings_.push_back(beginning);
    table.name_of_.push_back(name->second);
  }
  return table;
}

std::optional<std::size_t> TokenTable::Find(absl::string_view token) const {
  if (digests_.empty()) return std::nullopt;
  const Digest digest = Sha256(token);
  const std::uint64_t beginning = BeginningOf(digest);
  std::uint64_t found = 0;  // One more than the entry's index.
  for (std::size_t i = 0; i < beginnings_.size(); ++i) {
    found |= SameMask(beginnings_[i], beginning) & (i + 1);
  }
  // Of the one entry that begins so, or of some other, the rest.
  const std::size_t entry = found == 0 ? 0 : found - 1;
  if (CRYPTO_memcmp(digests_[entry].data(), digest.data(), digest.size()) != 0) return std::nullopt;
  return name_of_[entry];
}

absl::StatusOr<absl::string_view> BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  const bool bearer = absl::StartsWithIgnoreCase(authorization, kScheme);
  const absl::string_view token =
      bearer ? absl::StripAsciiWhitespace(authorization.substr(kScheme.size())) : "";
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("authorization: wanted \"Bearer \" and a token of ", kMinTokenBytes, " to ",
                     kMaxTokenBytes, " characters"));
  }
  return token;
}

}  // namespace normd
