// The server's valid bearer tokens, of which it knows only the digests.

#ifndef NORMD_SERVER_IDENTITY_TOKENS_H_
#define NORMD_SERVER_IDENTITY_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd {

using Digest = std::array<std::uint8_t, 32>;

// Source: FIPS 180-4, by OpenSSL. Thread-safe. std::bad_alloc when OpenSSL has no memory for it.
Digest Sha256(absl::string_view text);

inline constexpr std::size_t kMaxTokens = 10'000;
// Fewer cannot hold 256 random bits in text; `normctl token` makes 43.
inline constexpr std::size_t kMinTokenBytes = 32;
inline constexpr std::size_t kMaxTokenBytes = 1024;

// A plain SHA-256 of a token is enough, unlike for a password: a token is 32 random bytes, so
// nobody finds it by trying, with or without a salt, and no two are the same. The server cannot see
// that a token was random: `normctl token` makes them.
//
// Immutable, so thread-safe.
class TokenTable {
 public:
  // Lines of "NAME sha256:HEX", empty lines, and comments that begin with #. A name may have
  // several tokens, so that a new one can be given out before the old one is removed.
  // InvalidArgument names the line, the error and what was wanted, and quotes nothing but a valid
  // name: the line may contain the token itself.
  static absl::StatusOr<TokenTable> Parse(absl::string_view text);

  // The index of the token's name in names(), if it is valid. One digest and one look-up, for any
  // number of tokens. The time does not show which bytes of a wrong token are right: digests are
  // compared in constant time, and a secret key decides which of them are compared at all.
  std::optional<std::size_t> Find(absl::string_view token) const;

  const std::vector<std::string>& names() const { return names_; }  // Each once.
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Digest digest{};
    std::size_t name = 0;  // Its index in names_.
  };

  std::size_t BucketOf(const Digest& digest) const;
  // Sorts the entries by their buckets.
  void Arrange();

  std::vector<std::string> names_;
  std::vector<Entry> entries_;
  // The beginning of each bucket in entries_, and finally the end. The number of buckets is a power
  // of two, about as large as that of the entries; the key is random in each table.
  std::vector<std::size_t> buckets_;
  std::array<std::uint64_t, 4> key_{};
  int shift_ = 0;
};

// The token in "Bearer TOKEN", with the scheme in any case. InvalidArgument says what was wanted,
// but not what came.
absl::StatusOr<absl::string_view> BearerToken(absl::string_view authorization);

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_TOKENS_H_
