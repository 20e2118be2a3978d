// A checked policy file, with tables for look-ups.

#ifndef NORMD_SERVER_IDENTITY_POLICY_H_
#define NORMD_SERVER_IDENTITY_POLICY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/identity/identity.h"

namespace normd {

inline constexpr int kMaxIdentities = 10'000;
inline constexpr int kMaxRolesOfIdentity = 16;

// Immutable, so thread-safe. Each look-up is one in a hash table; null: no identity has that
// credential. Results live as long as the policy.
class Policy {
 public:
  // Takes the file as a whole or not at all. InvalidArgument gives the line, the role or identity,
  // the field, what came and what was wanted. It is returned for errors of PolicyText::Parse;
  // invalid or duplicate names; an undefined role; an identity without a role or without a
  // credential; the same credential at two identities; and invalid models and limits.
  static absl::StatusOr<Policy> Parse(absl::string_view text);

  absl::Span<const Identity> identities() const { return identities_; }

  const Identity* ByUri(absl::string_view uri) const { return Find(uris_, uri); }
  // `name` in any case.
  const Identity* ByDnsName(absl::string_view name) const;
  // By a token's name in the tokens' file.
  const Identity* ByToken(absl::string_view name) const { return Find(tokens_, name); }
  std::vector<std::string> TokenNames() const;  // Sorted.
  const Identity* own_user() const { return At(own_user_); }
  const Identity* anonymous() const { return At(anonymous_); }

 private:
  friend class PolicyBuilder;
  using Index = absl::flat_hash_map<std::string, std::size_t>;
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  Policy() = default;
  const Identity* At(std::size_t index) const {
    return index == kNobody ? nullptr : &identities_[index];
  }
  const Identity* Find(const Index& index, absl::string_view key) const {
    const auto found = index.find(key);
    return found == index.end() ? nullptr : At(found->second);
  }

  std::vector<Identity> identities_;
  Index uris_;
  Index dns_names_;  // In lower case.
  Index tokens_;
  std::size_t own_user_ = kNobody;
  std::size_t anonymous_ = kNobody;
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_POLICY_H_
