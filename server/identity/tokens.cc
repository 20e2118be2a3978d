#include "server/identity/tokens.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/identity/identity.h"

namespace normd {

namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

Digest Sha256(absl::string_view text) {
  // One context per thread: making one takes longer than the digest of a token.
  thread_local const std::unique_ptr<EVP_MD_CTX, FreeContext> context = [] {
    std::unique_ptr<EVP_MD_CTX, FreeContext> made(EVP_MD_CTX_new());
    if (made == nullptr || EVP_DigestInit_ex2(made.get(), EVP_sha256(), nullptr) != 1) {
      throw std::bad_alloc();
    }
    return made;
  }();
  Digest digest;
  // Without an algorithm it restarts with its previous one.
  if (EVP_DigestInit_ex2(context.get(), nullptr, nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), text.data(), text.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1) {
    throw std::bad_alloc();
  }
  return digest;
}

namespace {

constexpr std::size_t kHexDigits = 2 * std::tuple_size_v<Digest>;

// -1 for other characters.
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
  // By the digest's beginning: two tokens have the same with a probability of 1 in 2^64.
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
    table.entries_.push_back({token->digest, name->second});
  }
  table.Arrange();
  return table;
}

void TokenTable::Arrange() {
  if (getentropy(key_.data(), sizeof(key_)) != 0) std::abort();  // It never fails for so few bytes.
  for (std::uint64_t& word : key_) word |= 1;
  const std::size_t count = std::bit_ceil(std::max<std::size_t>(entries_.size(), 2));
  shift_ = 64 - static_cast<int>(std::bit_width(count - 1));
  std::sort(entries_.begin(), entries_.end(), [this](const Entry& a, const Entry& b) {
    return BucketOf(a.digest) < BucketOf(b.digest);
  });
  buckets_.assign(count + 1, 0);
  for (const Entry& entry : entries_) ++buckets_[BucketOf(entry.digest) + 1];
  std::partial_sum(buckets_.begin(), buckets_.end(), buckets_.begin());
}

// The high bits of a sum of products: a family of hash functions from which the key picks one
// (multilinear hashing by multiply and shift).
std::size_t TokenTable::BucketOf(const Digest& digest) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < key_.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, digest.data() + i * sizeof(word), sizeof(word));
    sum += key_[i] * word;
  }
  return static_cast<std::size_t>(sum >> shift_);
}

std::optional<std::size_t> TokenTable::Find(absl::string_view token) const {
  if (entries_.empty()) return std::nullopt;
  const Digest digest = Sha256(token);
  const std::size_t bucket = BucketOf(digest);
  std::optional<std::size_t> found;
  for (std::size_t i = buckets_[bucket]; i < buckets_[bucket + 1]; ++i) {
    const Entry& entry = entries_[i];
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = entry.name;
  }
  return found;
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
